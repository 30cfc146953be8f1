"""Models by name on the Hugging Face hub: what is asked, what is kept, what cannot be had."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.describe.catalogue import load_model
from planner.describe.model.huggingface import hub as reader
from planner.errors import CatalogueError, PlannerError, UnknownNameError
from tests import ROOT
from tests.hub import COMMIT, LLAMA_PARAMS, OTHER_COMMIT, TOKEN, Hub, serving

constants = pytest.importorskip("huggingface_hub.constants", reason="no huggingface_hub")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub of this machine, an empty cache, no token, and no proxy between."""
    with serving() as found:
        template = found.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "stored"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        reader.fetch_config.cache_clear()
        yield found
        reader.fetch_config.cache_clear()


def _refused(name: str) -> str:
    with pytest.raises(CatalogueError) as caught:
        load_model(name)
    said = str(caught.value)
    assert "\n" not in said
    assert name.partition("@")[0] in said
    return said


def test_a_model_is_read_by_its_name_and_only_its_configuration(hub: Hub) -> None:
    model = load_model("here/small")
    assert (model.name, model.num_params) == ("here/small", LLAMA_PARAMS)
    assert model.source == f"Hugging Face hub: here/small, commit {COMMIT}"
    assert {path for _, path, _ in hub.asked} == {"/here/small/resolve/main/config.json"}
    assert {token for _, _, token in hub.asked} == {None}


def test_models_of_one_last_name_and_revisions_of_one_model_differ(hub: Hub) -> None:
    names = ["here/small", "there/small", "here/small@v2", f"here/small@{OTHER_COMMIT}"]
    assert [load_model(name).num_layers for name in names] == [4, 8, 6, 6]
    assert [load_model(name).name for name in names] == names
    assert load_model("here/small").num_layers == 4
    assert OTHER_COMMIT in load_model("here/small@v2").source


def test_a_path_that_exists_wins(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    model = load_model("here/small")
    assert model.num_layers == 4
    (tmp_path / "here" / "small").mkdir()
    (tmp_path / "here" / "small" / "config.json").write_text(
        '{"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, '
        '"vocab_size": 32}'
    )
    assert load_model("here/small").family == "gpt2"


def test_a_process_asks_once_and_the_next_reads_the_cache(hub: Hub) -> None:
    first = load_model("here/small")
    asked = len(hub.asked)
    assert load_model("here/small") == first
    assert len(hub.asked) == asked
    reader.fetch_config.cache_clear()
    assert load_model("here/small") == first
    assert [method for method, _, _ in hub.asked[asked:]] == ["HEAD", "HEAD"]


def test_the_cache_answers_where_the_hub_does_not(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_model("here/small")
    reader.fetch_config.cache_clear()
    hub.status = 503
    assert load_model("here/small") == first
    assert "answers 503" in _refused("there/small")
    nowhere = "http://127.0.0.1:9"
    template = nowhere + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", nowhere)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    reader.fetch_config.cache_clear()
    assert load_model("here/small") == first
    said = _refused("there/small")
    assert "neither a local file nor in the cache" in said
    assert f"{nowhere} does not answer; check the network" in said


def test_a_broken_cache_says_what_to_delete(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = load_model("here/small")
    [blob] = tmp_path.rglob("blobs/*")
    [kept] = tmp_path.rglob("snapshots/*/config.json")
    content = blob.read_bytes()
    for broken in (content[:40], b"", b"\xff\xfe", b"[" * 100_000):
        blob.write_bytes(broken)
        reader.fetch_config.cache_clear()
        said = _refused("here/small")
        assert said.startswith("config.json of here/small is not valid JSON (")
        assert said.endswith(f"in the cache; delete {kept} to fetch it again")
    kept.unlink()
    blob.unlink()
    reader.fetch_config.cache_clear()
    assert load_model("here/small") == first
    # the file that says which commit a branch is, read only where the hub is not asked
    [branch] = tmp_path.rglob("refs/main")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for text in (b"\xff\xfe", b"../../../elsewhere"):
        branch.write_bytes(text)
        reader.fetch_config.cache_clear()
        said = _refused("here/small")
        assert "the cached files of here/small cannot be read" in said
        assert f"delete its folder in {tmp_path / 'hub'} to fetch it again" in said


def test_offline_asks_nobody(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_model("here/small")
    asked = len(hub.asked)
    reader.fetch_config.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_model("here/small") == first
    assert "HF_HUB_OFFLINE is set" in _refused("there/small")
    assert len(hub.asked) == asked


def test_a_gated_model_is_read_with_the_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    said = _refused("here/gated")
    assert f"accept its licence on {hub.address}/here/gated and set HF_TOKEN" in said
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert load_model("here/gated").num_params == LLAMA_PARAMS
    assert hub.asked[-1][2] == f"Bearer {TOKEN}"
    # what is in the cache needs no token
    monkeypatch.delenv("HF_TOKEN")
    reader.fetch_config.cache_clear()
    assert load_model("here/gated").num_params == LLAMA_PARAMS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("here/nothing", "neither a local file nor a model on the Hugging Face hub that you may"),
        ("here/small@v9", "no revision v9"),
        ("here/weights", "no config.json"),
        ("here/adapter", "rank 16 for here/small, not a model; name here/small and give"),
        ("here/strange", "model_type"),
        ("here/text", "not valid JSON"),
        ("here/huge", "1 MB, too large for a configuration"),
        ("here/a--b", "neither a local file nor a model"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_sentence(hub: Hub, name: str, words: str) -> None:
    if name == "here/strange":
        with pytest.raises(UnknownNameError, match=words):
            load_model(name)
    else:
        assert words in _refused(name)
    assert not any(path.endswith(("gguf", "safetensors")) for _, path, _ in hub.asked)
    if name == "here/huge":
        assert [method for method, _, _ in hub.asked] == ["HEAD"]


def test_a_wrong_token_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    said = _refused("here/small")
    assert "answers 401" in said
    assert "check HF_TOKEN" in said
    assert "hf_wrong" not in said


def test_other_paths_are_no_names(hub: Hub) -> None:
    for name in ("./nothing", "a/b/c", "a/b.toml", "a/b.json", "/a", "a/", "~/nothing", "a\\b"):
        with pytest.raises(PlannerError, match="cannot read"):
            load_model(name)
    assert not hub.asked


def test_without_the_library_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(builtins, "__import__", without)
    reader.fetch_config.cache_clear()
    said = _refused("org/name")
    assert "pip install 'parallelism-planner[hub]'" in said
    assert "is not a local file" in said


def test_files_of_a_hub_model_find_it_again(hub: Hub) -> None:
    workload = planner.Workload(sequence_length=512, global_batch=64)
    found = {}
    for name in ("here/small", "there/small"):
        answer = planner.plan(name, "polaris", nodes=1, workload=workload, frameworks=["fsdp2"])
        assert planner.Plan.from_json(answer.to_json()).model == name
        found[name] = planner.emit(answer)
        assert f'"model": "{name}"' in found[name]["layout.json"]
        assert f"#PBS -N {name.replace('/', '-')}\n" in found[name]["job.sh"]
        assert not any("/" in file for file in found[name])
        assert "YOUR-MODEL" not in found[name]["README.md"]
    assert found["here/small"] != found["there/small"]


def test_logs_are_held_against_the_model_that_a_layout_names(hub: Hub, tmp_path: Path) -> None:
    from planner.evidence.logs.comparison import compare_log

    log, layout = tmp_path / "log.csv", tmp_path / "layout.json"
    rows = "".join(f"{step},{0.05 + 0.001 * (step % 3)}\n" for step in range(20))
    log.write_text(f"step,step_time_s\n{rows}")
    job = planner.Workload(sequence_length=512, global_batch=64)
    answer = planner.plan("there/small", "polaris", nodes=1, workload=job, frameworks=["fsdp2"])
    layout.write_text(planner.emit(answer)["layout.json"])
    found = compare_log(str(log), planner.load_machine("polaris"), str(layout)).job.scenario
    assert (found.model.name, found.model.num_layers) == ("there/small", 8)


@pytest.mark.alone
def test_the_command_line_plans_and_writes_by_name(hub: Hub, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(tmp_path / "home"),
        "HF_ENDPOINT": hub.address,
        "HF_HUB_OFFLINE": "0",
    }

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "planner", *words],
            cwd=tmp_path,
            env=env | more,
            capture_output=True,
            text=True,
            timeout=120,
        )

    job = ("here/small", "-m", "polaris", "-n", "1", "--global-batch", "64")
    planned = run("plan", *job)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("Fits:   here/small on 1 node of polaris")
    assert not planned.stderr
    asked = len(hub.asked)
    # the cache of the first suffices to the next
    again = run("plan", *job, HF_HUB_OFFLINE="1")
    assert (again.returncode, again.stdout) == (0, planned.stdout)
    assert len(hub.asked) == asked
    written = run("emit", *job, "-f", "fsdp2")
    assert written.returncode == 0, written.stderr
    assert (tmp_path / "here-small-polaris" / "job.sh").is_file()
    shown = run("show", "here/small@v2")
    assert shown.returncode == 0, shown.stderr
    assert "name: here/small@v2" in shown.stdout
    assert "num_layers: 6" in shown.stdout
    refused = run("estimate", "here/nothing", "-m", "polaris")
    assert refused.returncode == 2
    assert refused.stderr.startswith("planner: model 'here/nothing' is neither")
    assert refused.stderr.count("\n") == 1
