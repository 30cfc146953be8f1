"""Command line: the examples work, exit codes mean what they say, hostile input is one sentence."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import planner
from planner.choose.plan import Plan
from planner.cli import FITS, NOTHING_FITS, WRONG_USE, app, main
from planner.describe.base import field_docs
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import UNFORESEEN

CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of a call in this process."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, out, err


def command(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "planner", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        check=False,
    )


# --- the examples ----------------------------------------------------------------------------

MISTRAL = "plan mistral-7b --machine vsc-5 --nodes 2 --seq-length 4096 --global-batch 64"
LLAMA = "plan llama-3.1-70b --machine polaris --nodes 64 --seq-length 8192 --global-batch 1024"
CONFIGURED = "plan ./config.json --machine aurora --nodes 256 --global-batch 6144 --tokens 2e12"
ESTIMATE = (
    "estimate llama-3-8b --machine polaris --nodes 4 --tp 4 --dp 4 --zero 1 --micro-batch 1 "
    "--recompute selective"
)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_has_the_network_of_its_framework_or_the_one_that_is_asked(capsys: Captured) -> None:
    def of(*options: str) -> dict[str, object]:
        line = (
            "estimate gpt2-xl -m polaris -n 2 --zero 1 --global-batch 64 --seq-length 1024 --json"
        )
        return dict(json.loads(run(capsys, *line.split(), *options)[1]))

    own = of("-f", "megatron-deepspeed")
    assert (own["network"], of()["network"]) == ("plugin-staged", "plugin")
    # one grammar: --set says the same, and changes what was chosen
    slow = of("--network", "sockets")
    assert slow == of("--set", "network=sockets")
    faster = of("--set", "network.latency_s=1us", "--network", "sockets")
    assert slow["step_time_s"] > faster["step_time_s"] > of()["step_time_s"]  # type: ignore[operator]
    estimate = ["estimate", "gpt2-xl", "-m", "polaris", "-n", "2", "--zero", "1"]
    said = " ".join(run(capsys, *estimate, "--network", "sockets")[1].split())
    assert "on the network 'sockets'" in said
    assert "within a factor of 2.2" in said
    said = " ".join(run(capsys, *estimate)[1].split())
    assert re.search(r"The step is on plugin; [\d.]+ m?s on sockets; --network chooses\.", said)
    assert "micro-batch 1, as none is stated; " in said
    # inside a node there is none
    inside = run(capsys, *estimate[:4], "--dp", "4", "--micro-batch", "1", "--json")[1]
    assert json.loads(inside)["network"] == ""
    shown = " ".join(run(capsys, "show", "polaris")[1].split())
    for name in ("plugin", "plugin-staged", "sockets"):
        assert f"network {name} (--network {name}): " in shown
    rates = [
        run(capsys, "collectives", "-m", "polaris", "-n", "8", *more)[1].splitlines()[3]
        for more in ([], ["--network", "sockets"])
    ]
    assert rates[0] != rates[1]


def test_collectives_of_any_group(capsys: Captured) -> None:
    code, out, _ = run(capsys, "collectives", "dgx-h200", "--ranks", "6", "--size", "8GiB")
    assert code == FITS
    assert out.startswith("8.00 GiB over 6 devices of dgx-h200: 1 node, 6 ranks on each; inside")
    # 8 GiB over six H200: 435.6 GB/s (stas00/ml-engineering, network/README.md)
    [taken] = [line for line in out.splitlines() if "all_reduce" in line and "taken" in line]
    assert taken.split()[1:3] == ["switches", "(NVLS)"]
    assert float(taken.split()[5]) == pytest.approx(435.6, rel=0.05)
    for name in ("broadcast", "reduce", "scatter", "gather", "all_to_all", "send_recv"):
        assert f"\n{name} " in out
    asked = ["collectives", "-m", "polaris", "--ranks", "8", "--stride", "4"]
    rows = json.loads(run(capsys, *asked, "--operation", "all-reduce", "--json")[1])
    assert {row["operation"] for row in rows} == {"all_reduce"}
    assert sum(row["used"] for row in rows) == 1
    assert "8 nodes, 1 rank on each" in run(capsys, *asked)[1]


@pytest.mark.slow
@pytest.mark.parametrize("line", [MISTRAL, LLAMA, CONFIGURED])
def test_plans_of_the_readme(capsys: Captured, config: Path, line: str) -> None:
    code, out, err = run(capsys, *line.split())
    assert code == FITS
    assert err == ""
    assert out.startswith(("Fits: ", "Fits, but tight: "))
    for word in ("Run: ", "MFU", "tokens/s", "node-hours", "strategy", "Next: "):
        assert word in out
    if "--tokens" in line:
        assert re.search(r"2 T tokens: [\d.]+ d, ", out)
    _, explained, _ = run(capsys, *line.split(), "--explain")
    for word in ("Fastest layouts that fit", "Classic strategies", "Code of layouts", "Dropped"):
        assert word in explained


@pytest.mark.slow
@pytest.mark.parametrize("line", [MISTRAL, LLAMA, CONFIGURED])
def test_plans_as_json(capsys: Captured, config: Path, line: str) -> None:
    code, out, err = run(capsys, *line.split(), "--json")
    data = json.loads(out)
    assert (code, err) == (FITS, "")
    assert data["fits"] is True
    assert {
        "dp",
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "zero_stage",
        "micro_batch",
        "grad_accumulation",
        "recompute",
        "schedule",
        "offload",
    } <= set(data["best"]["layout"])
    best = data["best"]
    assert best["step_time_s"] == pytest.approx(sum(best["step_time_parts_s"].values()))
    memory = dict(best["memory_bytes"])
    assert memory.pop("total") == pytest.approx(sum(memory.values()))
    assert {"tokens_per_s", "mfu", "host_memory_bytes"} <= set(best)
    assert [sorted(row) for row in data["dropped"]] == [["count", "reason"]] * len(data["dropped"])
    assert all({"name", "fits", "why", "fix"} <= set(row) for row in data["strategies"])
    assert data["num_devices"] == {"vsc-5": 4, "polaris": 256, "aurora": 3072}[data["machine"]]


@pytest.mark.slow
def test_plan_as_csv(capsys: Captured) -> None:
    code, out, _ = run(capsys, *MISTRAL.split(), "--csv", "--top", "7")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == FITS
    assert len(rows) == 7
    assert [float(row["step_time_s"]) for row in rows] == sorted(
        float(row["step_time_s"]) for row in rows
    )
    for row in rows:
        parts = [float(v) for k, v in row.items() if k.startswith("time_")]
        assert float(row["step_time_s"]) == pytest.approx(sum(parts))


def test_estimate(capsys: Captured) -> None:
    code, out, err = run(capsys, *ESTIMATE.split())
    assert (code, err) == (FITS, "")
    assert out.startswith(("Fits: ", "Fits, but tight: "))
    assert "Memory per device" in out
    code, out, _ = run(capsys, *ESTIMATE.split(), "--json")
    data = json.loads(out)
    layout = data["layout"]
    assert (layout["tp"], layout["dp"], layout["zero_stage"]) == (4, 4, 1)
    assert data["fits"] is True
    assert len(data["stages"]) == layout["pp"]
    assert sum(data["stages"][0].values()) == pytest.approx(data["memory_bytes"]["total"])
    code, out, _ = run(capsys, *ESTIMATE.split(), "--csv")
    assert len(list(csv.DictReader(io.StringIO(out)))) == 1


def test_dp_follows_from_nodes(capsys: Captured) -> None:
    given = run(capsys, *ESTIMATE.split(), "--json")[1]
    assert run(capsys, *ESTIMATE.replace("--dp 4", "").split(), "--json")[1] == given


def test_measured_runs_correct_a_plan_and_an_estimate(capsys: Captured, tmp_path: Path) -> None:
    runs = tmp_path / "runs.csv"
    columns = "row_id,system,gpu,n_gpus,model,seq_len,framework,dp,micro_batch,global_batch,"
    rows = "".join(f"r{i},Polaris,A100,4,GPT-2,1024,DDP,4,16,64,3\n" for i in range(2))
    runs.write_text(f"{columns}step_time_s\n{rows}")
    job = ("gpt2", "-m", "polaris", "--seq-length", "1024", "--global-batch", "64", "-f", "ddp")
    found = {}
    for name in ("plan", "estimate"):
        ours = (name, *job, *(("--dp", "4") if name == "estimate" else ()))
        _, plain, _ = run(capsys, *ours, "--json")
        code, out, _ = run(capsys, *ours, "--json", "--measured", str(runs))
        assert code == FITS
        before, data = json.loads(plain), json.loads(out)
        if name == "plan":
            assert Plan.from_json(out).recommended is not None
            before, after = before["recommended"], data["recommended"]
        else:
            after = data
        said = data["measured"]
        assert said["num_step_times"] == 2
        assert after["step_time_s"] > before["step_time_s"]
        if after["layout"] == before["layout"]:
            factor = after["step_time_s"] / before["step_time_s"]
            assert said["step_time"]["factor"] == pytest.approx(factor)
        found[name] = said
        _, text, _ = run(capsys, *ours, "--measured", str(runs))
        assert "2 measured step times: this job takes" in text
    assert found["estimate"]["measure_next"] is None


def test_measured_runs_that_are_none_are_one_sentence(capsys: Captured, tmp_path: Path) -> None:
    for given, words in (("absent.csv", "No such file"), ("a.log=b.json", "a.log")):
        code, _, err = run(capsys, "plan", "gpt2", "-m", "polaris", "--measured", given)
        assert code == WRONG_USE
        assert words in err
        assert err.count("\n") == 1


def test_a_part_of_a_node(capsys: Captured) -> None:
    job = "gpt2 --machine vsc-5 --devices 1 --seq-length 1024"
    code, out, _ = run(capsys, *f"estimate {job} --json".split())
    assert (code, json.loads(out)["layout"]["dp"]) == (FITS, 1)
    code, out, _ = run(capsys, *f"plan {job} --global-batch 8 --framework ddp --json".split())
    assert (code, json.loads(out)["num_devices"]) == (FITS, 1)
    code, out, err = run(capsys, *f"plan {job} --nodes 2".split())
    assert (code, out) == (2, "")
    assert "devices = 1 is part of one node, but nodes = 2" in err


def test_a_utilisation_beyond_the_usual_says_of_what_it_is(capsys: Captured) -> None:
    job = "estimate llama-3-8b -m dgx-h100 -n 1 --tp 8 --seq-length 32768 -f megatron-lm"
    _, out, _ = run(capsys, *f"{job} --precision fp8".split())
    assert "is of the bf16 peak" in out
    assert "MFU counts attention over the whole square" in out
    _, out, _ = run(capsys, *job.replace("32768", "2048").split())
    assert "MFU counts" not in out


def test_lists(capsys: Captured) -> None:
    for kind, least in (("models", 40), ("machines", 20), ("frameworks", 8)):
        code, out, _ = run(capsys, kind)
        rows = json.loads(run(capsys, kind, "--json")[1])
        assert code == FITS
        assert len(rows) >= least
        # switches stand below their framework
        assert len([line for line in out.splitlines() if line[0] != " "]) == len(rows)
        assert all(row["name"] in out for row in rows)
    machines = {row["name"]: row for row in json.loads(run(capsys, "machines", "--json")[1])}
    assert machines["polaris"]["num_devices"] == 2240


def test_switches_are_listed_shown_and_named(capsys: Captured) -> None:
    _, out, _ = run(capsys, "frameworks")
    assert " +compile " in out
    assert " +chunked-loss=VALUE" in out
    rows = {row["name"]: row for row in json.loads(run(capsys, "frameworks", "--json")[1])}
    assert rows["deepspeed"]["switches"]["liger"].startswith("Liger kernels")
    code, out, _ = run(capsys, "show", "megatron-lm+cuda-graphs")
    assert code == FITS
    assert "+cuda-graphs (on)" in out
    assert "--cuda-graph-impl local" in out
    assert "estimate only, not written to files" in out
    code, _, error = run(capsys, "show", "fsdp2+compil")
    assert code == WRONG_USE
    assert error.count("did you mean compile?") == 1
    assert json.loads(run(capsys, "show", "fsdp2+compile", "--json")[1])["switched"] == ["compile"]


def test_an_answer_names_its_switches_and_is_emitted_with_them(
    capsys: Captured, tmp_path: Path
) -> None:
    job = "gpt2 -m polaris --global-batch 64 --seq-length 1024 -f deepspeed+liger -f ddp+compile"
    code, out, _ = run(capsys, *f"plan {job} --json".split())
    answer = json.loads(out)
    assert code == FITS
    assert {row["framework"] for row in answer["ranked"]} == {"deepspeed+liger", "ddp+compile"}
    code, _, _ = run(capsys, *f"emit {job} -o {tmp_path / 'job'}".split())
    assert code == FITS
    written = json.loads((tmp_path / "job" / "layout.json").read_text())
    assert written["framework"] == answer["recommended"]["framework"]


def test_show(capsys: Captured) -> None:
    code, out, _ = run(capsys, "show", "polaris")
    assert code == FITS
    assert "560 nodes x 4 devices" in out
    assert "assumed" in out
    data = json.loads(
        run(capsys, "show", "polaris", "--json", "--set", "device.memory_bytes=80GB")[1]
    )
    assert data["device"]["memory_bytes"]["value"] == 80e9
    assert "num_params: 8,030,261,248" in run(capsys, "show", "llama-3-8b")[1]
    assert "fully_shard" in run(capsys, "show", "fsdp2")[1]


@pytest.mark.slow
def test_tokens_take_prefixes(capsys: Captured) -> None:
    line = "plan gpt2 -m polaris -f ddp --json"
    for text in ("300B", "300b", "300G", "0.3T", "3e11", "300 B"):
        data = json.loads(run(capsys, *line.split(), "--tokens", text)[1])
        assert data["workload"]["tokens"] == pytest.approx(3e11), text


@pytest.mark.slow
def test_nothing_fits(capsys: Captured) -> None:
    code, out, err = run(capsys, "plan", "llama-3.1-405b", "-m", "vsc-5")
    assert (code, err) == (NOTHING_FITS, "")
    assert out.startswith("Does not fit: llama-3.1-405b on 1 node of vsc-5")
    code, out, _ = run(capsys, "plan", "llama-3.1-405b", "-m", "vsc-5", "--json")
    assert (code, json.loads(out)["best"]) == (NOTHING_FITS, None)
    code, out, _ = run(capsys, "estimate", "llama-3-70b", "-m", "polaris")
    assert code == NOTHING_FITS
    assert "too much per device" in out


def test_the_version_is_the_packages(capsys: Captured) -> None:
    assert run(capsys, "--version") == (FITS, f"planner {planner.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("planner es", ["estimate"]),
        ("planner plan bert", ["bert-large"]),
        ("planner plan gpt2 --machine vsc-5", ["vsc-5", "vsc-5-a40", "vsc-5-cpu"]),
        ("planner plan gpt2 -m po", ["polaris"]),
        ("planner plan gpt2 -f fsdp2+comp", ["fsdp2+compile"]),
    ],
)
def test_a_shell_completes_commands_and_names(words: str, found: list[str]) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    completed = subprocess.run(
        [sys.executable, "-c", "from planner.cli import main; main()"],
        env={**os.environ, **asked, "_PLANNER_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert sorted(completed.stdout.split()) == found


@pytest.mark.slow
def test_processes(tmp_path: Path) -> None:
    small = "plan gpt2 -m polaris --global-batch 64 -f fsdp2 -f megatron-lm --json"
    done, again = command(*small.split()), command(*small.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == again.stdout
    nothing = "estimate llama-3.1-405b -m vsc-5 -n 1 --zero 3 -f fsdp2"
    assert command(*nothing.split()).returncode == 1
    wrong = command("plan", "lama-3-8b", "-m", "polaris")
    assert wrong.returncode == 2
    assert wrong.stdout == ""
    assert "did you mean llama-3-8b" in wrong.stderr
    help_text = command("--help")
    assert help_text.returncode == 0
    assert "estimate" in help_text.stdout
    # a reader that goes away is no error
    pipe = f"{sys.executable} -m planner machines | head -1"
    closed = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert "Traceback" not in closed.stderr
    reader, writer = os.pipe()
    os.close(reader)
    for words in ("models", "estimate gpt2 -m laptop -n 1 --seq-length 128"):
        unread = subprocess.run(
            [sys.executable, "-m", "planner", *words.split()],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (unread.returncode, unread.stderr) == (0, "")
    os.close(writer)


# --- hostile input ---------------------------------------------------------------------------


def refused(capsys: Captured, *arguments: str) -> str:
    """The one sentence with which a call is refused."""
    code, out, err = run(capsys, *arguments)
    assert code == WRONG_USE, (arguments, err[:200])
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("planner: ")
    assert len(err.splitlines()) == 1
    assert len(err) < 700
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("plan mistal-7b -m vsc-5", "did you mean mistral-7b"),
        ("plan mistral-7b -m polris", "did you mean polaris"),
        ("plan mistral-7b -m polaris -f fsdp3", "did you mean fsdp2"),
        ("show polari", "did you mean polaris"),
        ("plan gpt2 -m polaris --nodes -1", "at least 1"),
        ("plan gpt2 -m polaris --nodes 0", "at least 1"),
        ("plan gpt2 -m polaris --nodes 561", "exceeds the 560 nodes"),
        ("collectives -m polaris --nodes 0", "nodes = 0 is not between 1 and the 560 nodes"),
        ("collectives", "no machine is named; `planner machines` lists them"),
        ("collectives polaris -m eos", "polaris and --machine eos are two machines; name one"),
        ("collectives polaris --ranks 1", "a collective needs at least 2 ranks"),
        ("collectives polaris --stride 4", "--stride 4 goes with --ranks"),
        ("collectives polaris --ranks 5 --stride 2000", "exceed the 2,240 devices of polaris"),
        ("collectives polaris --ranks 4 --nodes 2", "give one of them"),
        ("collectives polaris --operation bcast", "unknown operation 'bcast'"),
        ("collectives polaris --size 0", "must be positive and finite"),
        (
            "collectives polaris --ranks 4 --against x.csv",
            "leave --ranks, --stride and --operation",
        ),
        ("plan gpt2 -m polaris --nodes nan", "--nodes"),
        ("plan gpt2 -m polaris --nodes 99999999999999999999", "exceeds the 560"),
        ("plan gpt2 -m polaris --global-batch 0", "global_batch = 0 is refused"),
        ("plan gpt2 -m polaris --global-batch -4", "global_batch = -4 is refused"),
        ("plan gpt2 -m polaris --global-batch 100000000", "check your units"),
        ("plan mistral-7b -m polaris --seq-length 1000000000", "check your units"),
        ("plan mistral-7b -m polaris --seq-length 1e9", "--seq-length"),
        ("plan mistral-7b -m polaris --seq-length 0", "sequence_length = 0 is refused"),
        ("plan gpt2 -m polaris --seq-length 2048", "1024 learned positions"),
        ("plan gpt2 -m polaris --tokens nan", "is not a number of tokens"),
        ("plan gpt2 -m polaris --tokens inf", "is not a number of tokens"),
        ("plan gpt2 -m polaris --tokens -5", "is refused"),
        ("plan gpt2 -m polaris --tokens 1e300", "check your units"),
        ("plan gpt2 -m polaris --tokens many", "is not a number of tokens"),
        ("plan gpt2 -m polaris --top 0", "--top"),
        ("collectives laptop", "one device of laptop exchanges nothing; use --ranks or --nodes"),
        ("plan gpt2 -m polaris --precision fp8", "not supported by NVIDIA A100"),
        ("plan gpt2 -m polaris --precision int4", "--precision"),
        ("plan gpt2 -m polaris --lora-rank -1", "lora_rank = -1 is refused"),
        (
            "plan gpt2 -m polaris --lora-rank 8 --lora-targets foo",
            "targets.0 = foo is refused",
        ),
        ("plan gpt2 -m polaris --frozen foo", "foo is refused"),
        ("plan gpt2 -m polaris --frozen embedding,layers,head", "nothing is trained"),
        ("plan gpt2 -m polaris --network socket", "unknown network 'socket': did you mean sockets"),
        ("plan gpt2 -m vsc-5 --network sockets", "vsc-5 has only one network"),
        ("plan gpt2 -m polaris --set device.memory=1", "did you mean memory_bytes"),
        ("plan gpt2 -m polaris --set device.memory_bytes=40", "check your units"),
        ("plan gpt2 -m polaris --set device.memory_bytes=-40GB", "check your units"),
        ("plan gpt2 -m polaris --set device.memory_bytes=nan", "not finite"),
        ("plan gpt2 -m polaris --set device.memory_bytes=1e300", "check your units"),
        ("plan gpt2 -m polaris --set device.memory_bytes", "section.field=value"),
        ("plan gpt2 -m polaris --set node.num_devices=0", "is refused"),
        ("plan resnet-50 -m polaris --seq-length 128", "trains on samples, not sequences"),
        ("estimate resnet-50 -m polaris --tp 2", "resnet-50 is not a transformer"),
        ("estimate gpt2 -m polaris --tp 3", "use one of 1, 2, 4"),
        ("estimate gpt2-xl -m polaris --tp 2 --seq-length 1024", "num_heads = 25"),
        ("estimate gpt2 -m polaris --tp 0", "tp = 0 is refused"),
        ("estimate gpt2 -m polaris --tp -1", "tp = -1 is refused"),
        ("estimate gpt2 -m polaris --dp 0", "dp = 0 is refused"),
        ("estimate gpt2 -m polaris --dp 1e300", "--dp"),
        ("estimate gpt2 -m polaris --dp 99999999999999999999999", "check your units"),
        ("estimate gpt2 -m polaris --tp 100000 --pp 100000", "exceeds the 560 nodes"),
        ("estimate gpt2 -m polaris --micro-batch 0", "micro_batch = 0 is refused"),
        ("estimate gpt2 -m polaris --micro-batch nan", "--micro-batch"),
        ("estimate gpt2 -m polaris --micro-batch 2000000", "check your units"),
        ("estimate gpt2 -m polaris --global-batch 0", "global_batch = 0 is refused"),
        ("estimate gpt2 -m polaris --global-batch 7 --dp 2", "use 6 or 8"),
        ("estimate gpt2 -m polaris --nodes 1 --dp 3", "use dp = 4"),
        ("estimate gpt2 -m polaris --nodes 0", "nodes = 0 must be at least 1"),
        ("estimate gpt2 -m polaris --nodes -3", "nodes = -3 must be at least 1"),
        ("estimate gpt2 -m polaris --schedule foo", "schedule = foo is refused: write 'none'"),
        ("estimate gpt2 -m polaris --zero foo", "zero_stage = foo is refused: use 0 to 3, or"),
        ("estimate gpt2 -m polaris --zero HYBRID_SHARD", "use zero_stage = 3 and dp_shard"),
        ("estimate gpt2 -m polaris --offload foo", "--offload"),
        ("estimate gpt2 -m polaris --zero 9", "zero_stage = 9 is refused"),
        ("estimate gpt2 -m polaris --framework foo", "unknown framework"),
        ("estimate gpt2 -m polaris --tiles 0", "tiles = 0 is refused"),
        ("nonsense", "No such command"),
        ("plan", "Missing argument"),
        ("plan gpt2", "Missing option"),
        ("plan gpt2 -m polaris --frobnicate", "No such option"),
    ],
)
def test_wrong_use(capsys: Captured, arguments: str, words: str) -> None:
    assert words in refused(capsys, *arguments.split())


@pytest.mark.parametrize("command", ["plan", "estimate", "ask nodes", "ask scaling"])
def test_two_forms_of_one_answer_are_refused_before_any_work(
    capsys: Captured, command: str
) -> None:
    # the model is not even looked for
    said = refused(capsys, *command.split(), "no-such-model", "-m", "polaris", "--csv", "--json")
    assert said == "planner: --json and --csv exclude each other; give one of them\n"


def test_hostile_models(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    good = json.dumps(CONFIG)
    texts = {
        "truncated": good[:60],
        "empty": "",
        "list": "[1, 2]",
        "deep": '{"a":' * 100_000 + "1" + "}" * 100_000,
        "brackets": "[" * 100_000,
        "huge": json.dumps({**CONFIG, "filler": "x" * 2_000_000}),
        "nan": good.replace("4096,", "NaN,", 1),
        "inf": good.replace("4096,", "Infinity,", 1),
        "negative": good.replace("4096,", "-4096,", 1),
        "zero": good.replace('"num_hidden_layers": 32', '"num_hidden_layers": 0'),
        "vocabulary": good.replace("32000", "1000000000000"),
        "digits": good.replace("32000", "9" * 5000),
        "text": good.replace("4096,", '"wide",', 1),
        "family": good.replace("llama", "x" * 5000),
    }
    for name, text in texts.items():
        Path(f"{name}.json").write_text(text)
        message = refused(capsys, "plan", f"{name}.json", "-m", "polaris")
        if name == "vocabulary":
            assert "check your units" in message
    Path("binary.json").write_bytes(random.Random(2).randbytes(3000))
    Path("folder.json").mkdir()
    Path("empty-folder").mkdir()
    os.mkfifo("fifo.json")
    Path("fields.toml").write_text('family = "llama"\nsurplus = 1\n')
    Path("vocabulary.toml").write_text(
        'family = "llama"\nnum_layers = 2\nhidden_size = 64\nnum_heads = 2\nnum_kv_heads = 2\n'
        "head_dim = 32\nffn_size = 128\nvocab_size = 1000000000000\n"
    )
    for name in (
        "binary.json",
        "folder.json",
        "empty-folder",
        "fifo.json",
        "absent.json",
        "fields.toml",
        "/dev/zero",
        "",
        "x" * 5000,
        "x" * 5000 + ".toml",
        "a\0.toml",
        "~nouser/x.toml",
        "~nouser/config.json",
        "\udcff.json",
    ):
        refused(capsys, "plan", name, "-m", "polaris")
    assert "check your units" in refused(capsys, "plan", "vocabulary.toml", "-m", "polaris")


def test_hostile_machines(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("a = = 1\n")
    Path("missing.toml").write_text('title = "x"\n')
    Path("nested.toml").write_text("a = " + "[" * 100_000)
    Path("binary.toml").write_bytes(random.Random(3).randbytes(3000))
    Path("folder.toml").mkdir()
    os.mkfifo("fifo.toml")
    for name in (
        "bad.toml",
        "missing.toml",
        "nested.toml",
        "binary.toml",
        "folder.toml",
        "fifo.toml",
        "absent.toml",
        "/dev/zero",
        "",
        "x" * 5000,
        "x" * 5000 + ".toml",
        "a\0.toml",
        "~nouser/x.toml",
        "\udcff.toml",
    ):
        refused(capsys, "plan", "gpt2", "-m", name)
        if name != "/dev/zero":
            refused(capsys, "show", name)


@pytest.mark.slow
def test_special_files_do_not_hang_a_process(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.toml")
    for name in (str(tmp_path / "fifo.toml"), "/dev/zero"):
        done = command("plan", name, "-m", "polaris", timeout=20)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_markup_in_names_is_text(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "[red]x[bold].json"
    path.write_text(json.dumps(CONFIG))
    code, out, _ = run(capsys, "plan", str(path), "-m", "polaris", "-f", "fsdp2")
    assert code == FITS
    assert "[red]x[bold]" in out


# --- options ----------------------------------------------------------------------------------


def flags(name: str) -> dict[str, object]:
    """Options of a command by flag."""
    found = typer.main.get_group(app).get_command(None, name)
    return {flag: option for option in found.params for flag in option.opts}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plan", "emit", "estimate"])
def test_every_field_of_a_workload_is_an_option(name: str) -> None:
    for field, text in field_docs(Workload).items():
        flag = "--seq-length" if field == "sequence_length" else f"--{field.replace('_', '-')}"
        if name == "estimate" and field in ("samples", "epochs"):
            assert flag not in flags(name)
            continue
        assert flags(name)[flag].help.startswith(text.rstrip("."))  # type: ignore[attr-defined]


def test_every_field_of_a_layout_is_an_option_of_estimate() -> None:
    # the passes follow from the batch
    fields = set(Layout.model_fields) - {"grad_accumulation"}
    assert fields <= {option.name for option in flags("estimate").values()}  # type: ignore[attr-defined]


def test_options_reach_the_answer(capsys: Captured) -> None:
    line = "estimate llama-3-8b -m polaris -n 4 --tp 4 --sp --pp 2 --zero 1 --global-batch 64"
    line += " --recompute full --lora-rank 8 --lora-targets query,value --frozen head --dropout 0.1"
    data = json.loads(run(capsys, *line.split(), "-f", "megatron-lm", "--json")[1])
    assert data["layout"] == {
        **Layout(dp=2, tp=4, pp=2, sequence_parallel=True, zero_stage=1).model_dump(mode="json"),
        "grad_accumulation": 32,
        "recompute": "full",
        "schedule": "1f1b",
    }
    line = "plan gpt2 -m polaris --optimizer sgd --lora-rank 8 --lora-targets query,value --json"
    data = json.loads(run(capsys, *line.split(), "--dropout", "0.25", "--frozen", "head")[1])
    asked = Workload(
        sequence_length=1024,
        optimizer="sgd",
        lora_rank=8,
        lora_targets=("query", "value"),
        frozen=("head",),
        dropout=0.25,
    )
    assert Workload.described(data["workload"]) == asked


def test_commands(capsys: Captured) -> None:
    out = run(capsys, "--help")[1]
    words = "plan estimate app models machines frameworks show emit backtest calibrate collectives"
    for name in [*words.split(), "compare", "validate"]:
        assert re.search(rf"^  {name} ", out, re.MULTILINE), name
    for name in ("trace", "run", "collectives"):
        assert re.search(rf"^  {name} ", run(capsys, "validate", "--help")[1], re.MULTILINE), name


def test_constants_are_shown_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["show", "constants"])
    text = capsys.readouterr().out
    assert stop.value.code == FITS
    for name in ("gemm.tile_overhead", "gemm.tiles[4].reach", "low_latency.rate_fraction"):
        assert name in text
    with pytest.raises(SystemExit):
        main(["show", "constants", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["step"]["attention"]["backward_flop_ratio"]["value"] == 2.5


DEEPSPEED_FILE = """{
  "train_batch_size": 16, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "round_robin_gradients": true}
}"""


def test_estimate_from_a_file(capsys: Captured, tmp_path: Path) -> None:
    """The file's layout, what was not counted of it, and what its framework can do instead."""
    path = tmp_path / "mine"
    path.write_text(DEEPSPEED_FILE)
    job = f"llama-3.2-1b --machine polaris --nodes 1 --seq-length 2048 --from {path}"
    code, out, _ = run(capsys, *f"estimate {job} --json".split())
    data = json.loads(out)
    assert code == 0
    assert data["layout"]["dp"] == 4
    assert data["layout"]["grad_accumulation"] == 4
    assert data["framework"] == "deepspeed"
    assert data["better"]["step_time_s"] < data["step_time_s"]
    assert any("round_robin_gradients is ignored" in note for note in data["notes"])
    # the same by hand
    by_hand = (
        "estimate llama-3.2-1b --machine polaris --nodes 1 --seq-length 2048 --zero 3 "
        "--micro-batch 1 --global-batch 16 -f deepspeed --json"
    )
    alone = json.loads(run(capsys, *by_hand.split())[1])
    assert alone["step_time_s"] == data["step_time_s"]
    assert "better" not in alone
    text = run(capsys, *f"estimate {job}".split())[1]
    assert "round_robin_gradients is ignored" in text
    assert "Your layout: " in text


def test_a_file_that_is_none_is_refused(capsys: Captured, tmp_path: Path) -> None:
    ask = ("estimate", "gpt2", "--machine", "polaris", "--from")
    (tmp_path / "a.json").write_text("{}")
    code, _, err = run(capsys, *ask, str(tmp_path / "a.json"))
    assert code == 2
    assert "a.json is not a supported configuration file" in err
    (tmp_path / "big").write_text("#" * 70_000)
    code, _, err = run(capsys, *ask, str(tmp_path / "big"))
    assert code == 2
    assert "refused" in err
    assert run(capsys, *ask, str(tmp_path / "absent"))[0] == 2


SMALL = "gpt2 -m laptop -n 1 --global-batch 8 --seq-length 128"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "plan {}.toml -m polaris",
        "plan gpt2 -m {}.toml",
        f"plan {SMALL} -f {{}}.toml",
        f"plan {SMALL} --measured {{}}",
        f"plan {SMALL} --measured {{}}={{}}",
        f"plan {SMALL} --report {{}}.html",
        f"estimate {SMALL} --from {{}}",
        f"simulate {SMALL} --trace {{}}.json",
        f"emit {SMALL} -f ddp -o {{}}",
        "sweep {}.toml",
        "check {} -m polaris",
        "backtest {}",
        "compare {} -m polaris",
        "calibrate --from-runs {} -m polaris -o x.toml",
        "show {}.toml",
    ],
)
def test_a_name_that_no_file_can_have_is_refused(command: str, capsys: Captured) -> None:
    code, out, err = run(capsys, *command.format("a" * 6000, "b" * 6000).split())
    assert (code, out, err.count("\n")) == (WRONG_USE, "", 1)
    assert re.match(r"planner: cannot (read|write)( into)? .{0,120}: File name too long; ", err)


def test_a_job_file_may_name_what_no_file_can_be_named(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(f'model = "{"a" * 6000}"\nmachine = "polaris"\n')
    code, _, err = run(capsys, "plan", str(tmp_path / "job.toml"))
    assert code == WRONG_USE
    assert err.startswith("planner: unknown model 'aaa")


def test_a_fault_of_the_system_that_nothing_foresees_is_one_sentence(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("planner.show.plan_report.show_plan", fail)
    code, _, err = run(capsys, "plan", *SMALL.split())
    assert (code, err.count("\n")) == (UNFORESEEN, 1)
    assert err.startswith("planner: this should not happen: OSError: [Errno 5] Input/output error")


def test_a_plan_of_pictures_speaks_of_samples(capsys: Captured) -> None:
    code, out, _ = run(
        capsys, "plan", "resnet-50", "-m", "polaris", "-n", "2", "--global-batch", "500"
    )
    assert code == 0
    assert "504 samples a step" in out
    assert "Use a batch of 504 instead of 500" in out
    assert "samples/s" in out
    assert not re.search(r"token|sequence", out)


def test_stages_of_a_convolutional_network_are_shown(capsys: Captured) -> None:
    _, out, _ = run(capsys, "show", "resnet-50")
    assert "stem: 3 x 224 x 224 -> 64 x 56 x 56, 9,536 parameters" in out
    assert "conv4 others: 5 times 1024 x 14 x 14 -> 1024 x 14 x 14" in out


def test_plan_writes_its_report_beside_its_answer(capsys: Captured, tmp_path: Path) -> None:
    file, arguments = tmp_path / "report.html", ("plan", "gpt2", "-m", "polaris", "-n", "1")
    code, out, _ = run(capsys, *arguments, "--json", "--report", str(file))
    assert code == FITS
    assert file.read_text(encoding="utf-8") == Plan.from_json(out).report()
    code, out, err = run(capsys, *arguments, "--report", str(tmp_path / "no" / "report.html"))
    assert code == WRONG_USE
    assert err.count("\n") == 1
    assert "cannot write" in err
    assert "report.html: No such file or directory" in err
