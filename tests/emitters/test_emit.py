"""Files that run an answer: whole, explained, the same every time; nothing can be injected."""

from __future__ import annotations

import json
import os
import re
import subprocess
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

import planner
from planner.choose.search.recommendation import rank_layouts
from planner.cli import main
from planner.describe.catalogue import folder, load_framework, load_machine, load_model, names
from planner.describe.configurations.reading import read_configuration
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.emitters import emit
from planner.emitters.folder import write_folder, zip_bytes
from planner.errors import FITS, NOTHING_FITS, WRONG_USE, EmitError
from planner.evidence.logs.log_files import RunLog
from planner.evidence.logs.log_job import read_job
from tests.descriptions import searched
from tests.emitters.emitted import Files, files_of, place_files, plan_of, run_on, scripts

_OFFLOADED = Layout(dp=8, zero_stage=3, offload="all-cpu", grad_accumulation=5)


# --- the folder ------------------------------------------------------------------------------


def test_the_layout_is_read_back_by_compare(tmp_path: Path) -> None:
    layout = Layout(dp=16, dp_shard=4, zero_stage=3, grad_accumulation=3, recompute="full")
    files = files_of("llama-3-8b", "polaris", 4, layout, "accelerate", precision="bf16")
    path = tmp_path / "layout.json"
    path.write_text(files["layout.json"])
    log = RunLog("run.log", "", "", "accelerate", 0, 0, 0, steps=(), facts={}, notes=())
    job = read_job(log, "polaris", path)
    assert job.layout == layout
    assert job.assumptions == ()
    assert job.scenario.model == load_model("llama-3-8b")
    assert job.scenario.framework.name == "accelerate"
    assert job.scenario.workload.sequence_length == 1024


def test_the_readme_states_the_estimate() -> None:
    case = ("llama-3-8b", "leonardo", 2, _OFFLOADED)
    found = planner.estimate(
        case[0],
        case[1],
        case[3],
        workload=planner.Workload(sequence_length=1024, global_batch=case[3].global_batch),
        framework="deepspeed",
    )
    text = files_of(*case, "deepspeed")["README.md"]
    shown = re.findall(r"^\| ([a-z ]+) \| ", text, re.MULTILINE)
    parts = [*found.memory_bytes.items(), *found.host_memory_bytes.items()]
    counted = [name.replace("_", " ") for name, value in parts if value]
    assert [name for name in shown if not name.startswith(("memory of", "host memory"))] == counted
    totals = re.findall(r"^\| total \| ([\d.]+) GiB \|$", text, re.MULTILINE)
    expected = [found.memory_bytes["total"] / 2**30, found.host_memory_bytes["total"] / 2**30]
    assert [float(total) for total in totals] == pytest.approx(expected, abs=0.006)
    assert "planner compare run.log --machine leonardo --layout layout.json" in text
    assert "DeepSpeedCPUAdam" in text


def test_every_file_is_explained_and_ends_in_a_line() -> None:
    for files in (place_files("polaris"), place_files("vsc-5", "accelerate")):
        explained = set(re.findall(r"^- `([\w.]+)`: ", files["README.md"], re.MULTILINE))
        assert set(files) - explained == {"README.md"}
        assert list(files) == sorted(files)
        for text in files.values():
            assert text.endswith("\n")
            assert text.isascii()
            assert not re.search(r"/(work|tmp|root|home/)", text)


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "ddp", "fsdp2", "nanotron"])
def test_same_input_same_bytes(framework: str) -> None:
    name = "llama-3-8b"
    layout = Layout(dp=8, zero_stage=1 if framework == "nanotron" else 3)
    if framework == "ddp":
        layout = Layout(dp=8)
    first = files_of(name, "polaris", 2, layout, framework)
    assert first == files_of(name, "polaris", 2, layout, framework)
    assert zip_bytes(first) == zip_bytes(dict(reversed(first.items())))


def test_the_archive_holds_the_files() -> None:
    files = place_files("polaris")
    with zipfile.ZipFile(BytesIO(zip_bytes(files))) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["submit.sh"] == 0o755
    assert modes["README.md"] == 0o644


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    write_folder({"a.sh": "1\n", "b": "2\n"}, folder)
    assert os.access(folder / "a.sh", os.X_OK)
    (folder / "b").write_text("mine")
    with pytest.raises(EmitError, match=r"already holds b; .* --force"):
        write_folder({"b": "3\n", "c": "4\n"}, folder)
    assert (folder / "b").read_text() == "mine"
    assert not (folder / "c").exists()
    write_folder({"b": "3\n", "c": "4\n"}, folder, force=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "a.sh": "1\n",
        "b": "3\n",
        "c": "4\n",
    }


def test_a_killed_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, old, new = {"a.sh": "1\n", "b": "2\n"}, tmp_path / "old", tmp_path / "new"
    old.mkdir()
    moved = os.replace

    def replace_or_stop(draft: Path, place: Path) -> None:
        if place.name == "b":
            raise KeyboardInterrupt
        moved(draft, place)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    # at the second of two files of a folder that is there, and at the whole of a new one
    monkeypatch.setattr(os, "replace", replace_or_stop)
    monkeypatch.setattr(Path, "rename", stop)
    for place in (old, new):
        with pytest.raises(KeyboardInterrupt):
            write_folder(files, place)
    assert [path.name for path in old.iterdir()] == ["a.sh"]
    assert not new.exists()
    monkeypatch.undo()
    for place in (old, new):
        write_folder(files, place)
        assert {path.name: path.read_text() for path in place.iterdir()} == files
    assert new.stat().st_mode == old.stat().st_mode


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    # a folder stands where the second file must go: the first must not be left alone there
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "kept").write_text("mine")
    with pytest.raises(EmitError, match="cannot write"):
        write_folder({"b": "2\n", "c": "3\n"}, tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    for path in ("/proc/none", "a\0b"):
        with pytest.raises(EmitError, match="cannot write"):
            write_folder({"a": "1"}, Path(path))


# --- what cannot be written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "model", "layout", "options", "words"),
    [
        ("llm-foundry", "gpt2", Layout(dp=4), {}, "use a current framework"),
        ("megatron-lm", "gemma-2-27b", Layout(dp=4), {}, "4 normalisations a layer"),
        ("megatron-lm", "bloom-176b", Layout(dp=4), {}, "alibi positions"),
        ("megatron-lm", "gpt2", Layout(dp=4), {"optimizer": "adafactor"}, "use adam, adamw, sgd"),
        ("nanotron", "llama-3-8b", Layout(dp=4), {"optimizer": "sgd"}, "use adam or adamw"),
        ("megatron-lm", "gpt2", Layout(dp=4), {"lora_rank": 8}, "trains no adapters"),
        ("nanotron", "qwen2.5-7b", Layout(dp=4), {}, "has biases"),
        ("fsdp2", "gpt2", Layout(dp=2, tp=2, sequence_parallel=True), {}, "use tp = 1"),
        ("accelerate", "gpt2", Layout(dp=4), {}, "use zero_stage = 2, 3"),
    ],
)
def test_refusals(
    framework: str, model: str, layout: Layout, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(EmitError, match=words) as refused:
        files_of(model, "polaris", 1, layout, framework, **options)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


def test_a_disk_that_is_not_described_is_asked_for() -> None:
    layout = Layout(dp=1, zero_stage=3, offload="all-nvme")
    files = files_of("gpt2", "workstation-1x4090", 1, layout, "deepspeed")
    config = json.loads(files["ds_config.json"])["zero_optimization"]
    assert (
        config["offload_param"]["nvme_path"] == config["offload_optimizer"]["nvme_path"] == "nvme/"
    )
    assert "States go to `nvme/` next to `job.sh`: make it a folder" in files["README.md"]
    # the job says so before anything starts, and names what to do
    assert '[[ -d "nvme/" ]] || { echo "nvme/ is missing: make it a folder' in files["job.sh"]
    stated = files_of("gpt2", "polaris", 1, layout.replaced(dp=4), "deepspeed")
    assert "nvme/" not in stated["job.sh"]


def test_adapters_are_said_to_the_user() -> None:
    files = place_files("polaris", lora_rank=8, lora_targets=("query",), frozen=("embedding",))
    assert "LoRA adapters of rank 8 on query:" in files["README.md"]
    assert "freezes embedding." in files["README.md"]
    files = place_files("polaris", lora_rank=8, dora=True, base_format="nf4-double")
    assert "DoRA adapters of rank 8 on query, key, value, out:" in files["README.md"]


def _tuned(**workload: Any) -> Files:
    layout = Layout(dp=2, zero_stage=3, grad_accumulation=4)
    return files_of("llama-3-8b", "vsc-5", 1, layout, "accelerate", **workload)


@pytest.mark.parametrize(
    "workload",
    [
        {"lora_rank": 8, "lora_targets": ("query", "value"), "lora_dropout": 0.1},
        {"lora_rank": 64, "lora_targets": ("all-linear",), "dora": True, "base_format": "nf4"},
        {"lora_rank": 16, "base_format": "nf4-double"},
        {"lora_rank": 16, "base_format": "int8"},
    ],
)
def test_adapters_are_read_back(tmp_path: Path, workload: dict[str, Any]) -> None:
    """Files of peft and transformers say what is trained and how the base is stored."""
    files = _tuned(**workload)
    names = [name for name in files if name.endswith((".yaml", ".json")) and name != "layout.json"]
    for name in names:
        (tmp_path / name).write_text(files[name])
    found = read_configuration(*(tmp_path / name for name in names))
    asked = Workload(**workload)
    for field in ("lora_rank", "lora_targets", "lora_dropout", "dora", "base_format"):
        read = found.workload.get(field, Workload.model_fields[field].default)
        assert read == getattr(asked, field), field


def test_a_frozen_base_is_stored_in_a_type_that_shards_beside_the_adapters() -> None:
    sharded = json.loads(_tuned(lora_rank=8, base_format="nf4")["quantization_config.json"])
    assert sharded["bnb_4bit_quant_storage"] == sharded["bnb_4bit_compute_dtype"] == "bfloat16"
    alone = files_of(
        "llama-3-8b", "vsc-5", 1, Layout(grad_accumulation=4), "ddp", lora_rank=8, base_format="nf4"
    )
    assert json.loads(alone["quantization_config.json"])["bnb_4bit_quant_storage"] == "uint8"
    plain = _tuned(lora_rank=8)
    assert "adapter_config.json" in plain
    assert "quantization_config.json" not in plain


def test_modules_of_adapters_are_named_for_peft() -> None:
    some = json.loads(_tuned(lora_rank=8, lora_targets=("gate", "out"))["adapter_config.json"])
    assert some["target_modules"] == ["o_proj", "gate_proj"]
    every = json.loads(_tuned(lora_rank=8, lora_targets=("all-linear",))["adapter_config.json"])
    assert every["target_modules"] == "all-linear"


@pytest.mark.parametrize(
    ("framework", "model"),
    [("deepspeed", "gpt2"), ("accelerate", "gpt2"), ("ddp", "llama-3.2-1b"), ("fsdp2", "gpt2"),
     ("nanotron", "llama-3-8b"), ("megatron-lm", "gpt2")],
)  # fmt: skip
def test_what_no_file_says_is_left_to_the_user_in_words(framework: str, model: str) -> None:
    zero = {"ddp": 0, "nanotron": 1, "megatron-lm": 1}.get(framework, 3)
    readme = files_of(model, "polaris", 1, Layout(dp=4, zero_stage=zero), framework)["README.md"]
    said = readme.partition("## Start")[2].lower()
    for word in ("data", "tokenizer", "learning rate", "warm"):
        assert word in said, word


@pytest.mark.slow
def test_ranks_of_a_plan() -> None:
    job = planner.Workload(sequence_length=1024, global_batch=64)
    plan = planner.plan("gpt2", "polaris", nodes=1, workload=job, frameworks=["deepspeed"], top=3)
    second = planner.emit(plan, 2)
    assert json.loads(second["layout.json"])["layout"] == plan.ranked[1].layout.model_dump(
        mode="json"
    )
    for rank in (0, 4):
        with pytest.raises(EmitError, match="use 1 to 3"):
            planner.emit(plan, rank)
    with pytest.raises(EmitError, match="steps = 0"):
        planner.emit(plan, steps=0)
    assert planner.emit(plan, steps=np.int64(7)) == planner.emit(plan, steps=7)
    for name in ("steps", "rank"):
        for value in (2.5, 2.0, True, "2", np.float64(2)):
            with pytest.raises(EmitError, match=f"^{name} = .* is not a whole number; write"):
                planner.emit(plan, **{name: value})
    with pytest.raises(EmitError, match=r"^plan = None is not a plan; give what planner.plan"):
        planner.emit(cast(Any, None))
    with pytest.raises(EmitError, match=r"^queue = None is not a name"):
        planner.emit(plan, queue=cast(Any, None))
    with pytest.raises(EmitError, match=r"^benchmark = 'no' is not a truth value"):
        planner.emit(plan, benchmark=cast(Any, "no"))
    for name, value in {"model": "gpt2", "machine": "polaris", "framework": "ddp"}.items():
        with pytest.raises(EmitError, match=rf"^{name} = '{value}' is not a description; give "):
            planner.emit(plan, **{name: value})
    full = planner.plan("llama-3.1-405b", "vsc-5", nodes=1)
    with pytest.raises(EmitError, match="nothing fits"):
        planner.emit(full)


def written(plan: planner.Plan, rank: int) -> tuple[Files, str]:
    """Files, or the sentence that refuses them."""
    try:
        return planner.emit(plan, rank), ""
    except EmitError as refusal:
        return {}, str(refusal)


PLACES = {"megatron-deepspeed": "aurora", "megatron-deepep": "eos"}


# every catalogued framework with the plans of four unlike models: files, or one sentence
@pytest.mark.parametrize("framework", names("framework"))
@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b", "gpt2", "gemma-2-27b"])
def test_every_plan_is_written_or_refused(model: str, framework: str) -> None:
    machine = PLACES.get(framework, "polaris")
    job = planner.Workload(sequence_length=1024, global_batch=48)
    found = searched(load_model(model), load_machine(machine), 2, job, (framework,))
    ranked = tuple(rank_layouts(found.values(), 4))
    best = ranked[0] if ranked else None
    plan = replace(plan_of(model, machine, 2, job), ranked=ranked, recommended=best)
    for rank, found in enumerate(plan.ranked, 1):
        files, refusal = written(plan, rank)
        assert files or re.search(r"; (use|take|plan|emit)\b", refusal), refusal
        if not files:
            continue
        layout = found.layout
        assert Layout.described(json.loads(files["layout.json"])["layout"]) == layout
        assert layout.global_batch == 48
        for text in scripts(files).values():
            assert run_on(text, "bash", "-n").returncode == 0


# models that Megatron-LM's code does not build, and some that it does
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "machine", "nodes"),
    [
        ("olmo-2-7b", "perlmutter", 4),
        ("gemma-2-27b", "alps", 8),
        ("bert-large", "polaris", 1),
        ("wordplay-85m-char", "polaris", 1),
        ("falcon-40b", "alps", 8),
        ("bloom-176b", "alps", 32),
        ("gpt-oss-20b", "perlmutter", 4),
        ("llama-3-8b", "aurora", 2),
    ],
)
def test_what_is_ranked_first_is_written(model: str, machine: str, nodes: int) -> None:
    job = planner.Workload(sequence_length=512, global_batch=384)
    plan = planner.plan(model, machine, nodes=nodes, workload=job, top=6)
    assert plan.ranked
    for rank in range(1, len(plan.ranked) + 1):
        assert planner.emit(plan, rank)
    lacking = load_framework("megatron-lm").code.lacks(load_model(model), job)
    noted = any(note.startswith("Not searched: megatron-lm: ") for note in plan.notes)
    assert noted == (bool(lacking) and machine != "aurora")


HOSTILE = 'x";$(touch pwned)`touch pwned`\n#PBS -q evil\n#SBATCH -p evil\n\'"""]}{: &a *a !!x\\'


# --- hostile names ---------------------------------------------------------------------------


def asked_for(script: str) -> list[str]:
    """What the directives of a script ask for, without name, time and queue."""
    lines = re.findall(r"^#(?:PBS|SBATCH) .*", script, re.MULTILINE)
    varying = re.compile(r"-N |--job-name=|time=|-q |tasks-per-node")
    return [line for line in lines if not varying.search(line)]


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "megatron-lm", "nanotron"])
@pytest.mark.parametrize("kind", ["polaris", "vsc-5", "workstation-4x4090"])
def test_names_cannot_inject(framework: str, kind: str, tmp_path: Path) -> None:
    machine = load_machine(kind).replaced(name=HOSTILE)
    model = load_model("llama-3-8b").replaced(name=HOSTILE)
    zero = {"megatron-lm": 1, "nanotron": 1}.get(framework, 3)
    layout = Layout(dp=machine.node.num_devices, zero_stage=zero)
    job = planner.Workload(sequence_length=1024, global_batch=layout.global_batch)
    found = planner.estimate(model, machine, layout, workload=job, framework=framework)
    plan = plan_of(HOSTILE, HOSTILE, 1, job)
    files = emit(plan, found, model=model, machine=machine)
    for name, text in files.items():
        assert not re.search(r"[$`;\"'(]\s*touch", text), name
    clean = place_files(kind, nodes=1)["job.sh"]
    asked = [asked_for(text) for text in (files["job.sh"], clean)]
    assert asked[0] == asked[1]
    assert "YOUR-MODEL.toml" in files["README.md"]
    assert "model" not in json.loads(files["layout.json"])
    for name in files:
        if name.endswith(".yaml"):
            assert isinstance(yaml.safe_load(files[name]), dict)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    # run the scripts: whatever is inside a name, nothing but the missing program stops them
    for name in scripts(files):
        subprocess.run(["bash", name], cwd=tmp_path, capture_output=True, check=False, timeout=20)
    assert not (tmp_path / "pwned").exists()


# --- the command -----------------------------------------------------------------------------

MISTRAL = "emit mistral-7b -m vsc-5 -n 2 --seq-length 4096 --global-batch 64 -f deepspeed"


def command(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a call in this process."""
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    out, err = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, out, err


@pytest.mark.slow
def test_the_command_writes_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(capsys, MISTRAL)
    assert (code, err) == (FITS, "")
    folder = tmp_path / "mistral-7b-vsc-5"
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert {"README.md", "job.sh", "layout.json", "submit.sh"} <= set(found)
    assert out == f"mistral-7b-vsc-5: {', '.join(sorted(found))}\n"
    # the same files again, printed
    _, printed, _ = command(capsys, f"{MISTRAL} --dry-run")
    assert printed == "".join(f"==> {n} <==\n{t}\n" for n, t in sorted(found.items()))
    (folder / "README.md").write_text("mine")
    code, out, err = command(capsys, MISTRAL)
    assert (code, out) == (WRONG_USE, "")
    assert "--force" in err
    assert (folder / "README.md").read_text() == "mine"
    code, _, _ = command(capsys, f"{MISTRAL} --force")
    assert code == FITS
    assert (folder / "README.md").read_text() == found["README.md"]


@pytest.mark.slow
def test_the_command_says_what_it_cannot_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(capsys, "emit llama-3.1-405b -m vsc-5")
    assert (code, out) == (NOTHING_FITS, "")
    assert err.startswith("nothing fits: ")
    for line, words in {
        "emit gpt2 -m polaris -f ddp --rank 999": "use 1 to",
        "emit gpt2 -m polaris --rank 0": "--rank",
        "emit gpt2 -m polaris --steps 0": "--steps",
        "emit gpt2 -m polaris -f ddp --queue $(x)": "not a valid queue name",
        "emit gpt2 -m thetagpu -f deepspeed --global-batch 48": "cobalt",
        "emit gpt2 -m polaris -f ddp -o /proc/none": "cannot write",
    }.items():
        code, out, err = command(capsys, line)
        assert (code, out) == (WRONG_USE, ""), line
        assert words in err, line
        assert len(err.splitlines()) == 1, line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_refusal_names_a_layout_that_can_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "emit qwen2.5-7b -m polaris -n 2 --global-batch 64 -f fsdp2 -f deepspeed --dry-run"
    for rank in range(1, 21):
        code, out, err = command(capsys, f"{line} --rank {rank}")
        if code == WRONG_USE:
            break
    else:
        pytest.fail("every layout can be written: take another question for this test")
    (other,) = re.findall(r"; --rank (\d+) can be written", err)
    code, out, _ = command(capsys, f"{line} --rank {other}")
    assert code == FITS
    assert out.startswith("==> README.md <==\n")


def test_own_descriptions_are_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = folder("model") / "llama-3.2-1b.toml"
    Path("mine.toml").write_text(source.read_text())
    line = "emit ./mine.toml -m polaris --set node.num_devices=2 --set node.nic_of_device=[0,1]"
    code, out, err = command(capsys, f"{line} -f deepspeed --global-batch 64 --dry-run")
    assert (code, err) == (FITS, "")
    assert "--ppn 2 " in out
    assert "--machine YOUR-MACHINE.toml --layout layout.json --model YOUR-MODEL.toml" in out


def test_one_device_keeps_to_what_the_code_is_told() -> None:
    """Whatever a framework's stages are called there, the rest of its rules hold."""
    layout = Layout(recompute="full", recompute_layers=2)
    megatron = load_framework("megatron-lm")
    files_of("gpt2", "dgx-h100", 1, layout, megatron)
    silent = megatron.replaced(code=megatron.code.replaced(recompute_by=()).model_dump())
    with pytest.raises(EmitError, match="recompute_layers = 2"):
        files_of("gpt2", "dgx-h100", 1, layout, silent)
    # accelerate's own stages begin with 2
    assert files_of("gpt2", "dgx-h100", 1, Layout(), "accelerate")
