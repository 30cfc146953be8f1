"""Check: ten job scripts after the sites' documentation, emitted folders, and samples of hooks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

from planner.cli import main
from planner.describe.catalogue import load_machine, names
from planner.describe.configurations.batch_script import directives, read_batch_script
from planner.describe.configurations.batch_site import machine_of_script
from planner.describe.layout import Layout
from planner.emitters.folder import write_folder
from planner.emitters.scripts.systems import SYSTEMS
from tests import ROOT
from tests.emitters import slurm
from tests.emitters.emitted import files_of, place_files

SCRIPTS = Path(__file__).with_name("scripts")
HOOKS = ROOT / "docs" / "howto" / "hooks"


def _check(capsys: pytest.CaptureFixture[str], place: Path | str, *options: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(["check", str(place), *options])
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, " ".join((said.out + said.err).split())


# each script has something to find, as its site's documentation says
TEN = [
    ("polaris.pbs", (), 1, ["llama-3-8b on 16 nodes of polaris, queue prod (small)"],
     ["out of memory", "micro batch 4 ->", "holds 759 of 2,000 steps"]),
    ("polaris-debug.pbs", (), 1, ["on 2 nodes of polaris, queue debug"],
     ["03:00:00 is more than the 1 h of debug", "estimated on the network sockets"]),
    ("aurora.pbs", ("--model", "auroragpt-7b"), 1, ["on 4 nodes of aurora, queue debug-scaling"],
     ["--cpu-bind depth: rank 6 would straddle", "add -k doe"]),
    ("vsc-5.sh", (), 1, ["mistral-7b on 2 nodes of vsc-5, queue zen3_0512_a100x2"],
     ["out of memory", "accelerate, 4 replicas"]),
    ("perlmutter.sh", (), 1, ["llama-3-8b on 4 nodes of perlmutter, queue regular"],
     ["16 ranks start on a node", "start 4 ranks"]),
    ("frontier.sh", ("--model", "llama-3.1-70b"), 1, ["on 16 nodes of frontier"],
     ["tp = 16 spans nodes of 8 devices", "NCCL_SOCKET_IFNAME=hsn0, where",
      "04:00:00 is more than the 2 h"]),
    ("lumi.sh", (), 1, ["llama-2-13b on 2 nodes of lumi-g, queue standard-g"],
     ["72:00:00 is more than the 48 h", "ZeRO-2"]),
    ("vista.sh", ("--model", "gpt2"), 1, ["gpt2 on 8 nodes of vista, queue gh"],
     ["--gres: the batch system rejects it", "of 600,000 steps"]),
    ("leonardo.sh", (), 1, ["qwen2.5-7b on 4 nodes of leonardo"],
     ["torchrun starts on one of 4 nodes only", "queue boost_qos_dbg does not admit 4 nodes"]),
    ("jean-zay.slurm", ("--model", "llama-2-7b"), 0, ["on 8 nodes of jean-zay-a100"],
     ["4 replicas x 4-way tensor x 4-stage pipeline, ZeRO-1", "jobs in a row, from checkpoints"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "code", "job", "found"), TEN)
def test_scripts_after_the_sites_documentation(
    name: str,
    options: tuple[str, ...],
    code: int,
    job: list[str],
    found: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    got, said = _check(capsys, SCRIPTS / name, *options)
    for sentence in (*job, *found):
        assert sentence in said, said
    assert got == code


def test_a_mended_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the fix says is enough: ranks as the node has devices."""
    text = (SCRIPTS / "perlmutter.sh").read_text(encoding="utf-8")
    shutil.copy(SCRIPTS / "llama3_8b.toml", tmp_path)
    mended = tmp_path / "job.sh"
    mended.write_text(text.replace("--ntasks-per-node 4", "--ntasks-per-node 1"), encoding="utf-8")
    code, said = _check(capsys, mended)
    assert (code, "ranks start" in said) == (0, False)


def test_one_device_of_a_node_is_one_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -p zen3_0512_a100x2 --qos=zen3_0512_a100x2 -N 1 --gres=gpu:1 -t 60\n"
        "python train.py --model_name_or_path gpt2 --per_device_train_batch_size 4 --bf16\n",
        encoding="utf-8",
    )
    code, said = _check(capsys, script, "--steps", "100", "--seq-length", "1024", "--json")
    answer = json.loads(said)
    assert (code, answer["findings"], answer["estimate"]["layout"]["dp"]) == (0, [], 1)


def test_a_script_of_lsf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "job.lsf"
    script.write_text(
        "#!/bin/bash\n#BSUB -nnodes 2\n#BSUB -W 1:00\n#BSUB -q batch\n#BSUB -P abc\n"
        "jsrun --nrs=2 --tasks_per_rs=6 --gpu_per_rs=6 python pretrain_gpt.py --num-layers 24 "
        "--hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --micro-batch-size 1 "
        "--global-batch-size 24 --fp16 --train-iters 100\n",
        encoding="utf-8",
    )
    code, said = _check(capsys, script, "--model", "gpt2-medium")
    assert code == 0
    assert "gpt2-medium on 2 nodes of summit, queue batch" in said
    assert "12 replicas" in said


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("#SBATCH -p nowhere\nsrun python train.py\n", "--machine"),
        ("#SBATCH -p gh -N 2\nsrun python train.py\n", "--model"),
        ("#SBATCH -p gh -N 2\nsrun python train.py --model_name_or_path gpt2\n", "--framework"),
    ],
)
def test_what_is_not_found_is_asked_for(
    text: str, asks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n{text}", encoding="utf-8")
    code, said = _check(capsys, script)
    assert code == 2
    assert asks in said
    assert said.count("planner:") == 1


@pytest.mark.parametrize("name", [n for n in names("machine") if load_machine(n).scheduler.queues])
def test_a_machine_is_found_by_its_own_script(name: str, tmp_path: Path) -> None:
    machine = load_machine(name)
    if machine.scheduler.kind not in SYSTEMS:
        pytest.skip("no job script is written for it")
    write_folder(place_files(machine), tmp_path)
    script = read_batch_script(tmp_path)
    assert machine_of_script(script).name == name
    assert script.nodes == 2
    assert script.ranks_per_node in (machine.node.num_devices, None)
    assert script.walltime_s


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "fsdp2", "ddp", "megatron-lm"])
def test_an_emitted_folder_fits(
    framework: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check of a folder is the estimate that it was written from."""
    stage = 3 if framework in ("accelerate", "fsdp2") else 0
    layout = Layout(dp=8, micro_batch=2, zero_stage=stage)
    files = files_of("gpt2", "polaris", 2, layout, framework, steps=100)
    write_folder(files, tmp_path)
    code, said = _check(capsys, tmp_path, "--json")
    answer = json.loads(said)
    assert code == 0
    assert answer["findings"] == []
    assert answer["estimate"]["framework"].startswith(framework)
    assert answer["estimate"]["layout"]["dp"] == 8
    assert answer["estimate"]["layout"]["micro_batch"] == 2


def test_an_edited_folder_is_what_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = files_of("gpt2", "polaris", 2, Layout(dp=8, micro_batch=2), "megatron-lm", steps=100)
    options = files["megatron.args"].replace("--micro-batch-size=2", "--micro-batch-size=1")
    write_folder({**files, "megatron.args": options}, tmp_path)
    _, said = _check(capsys, tmp_path, "--json")
    assert json.loads(said)["estimate"]["layout"]["micro_batch"] == 1


@pytest.mark.parametrize(
    ("kind", "line", "seconds"),
    [
        ("slurm", "--time=90", 5400),
        ("slurm", "-t 1:30", 90),
        ("slurm", "-t 2:00:00", 7200),
        ("slurm", "-t 1-12", 129600),
        ("slurm", "--time=1-00:30:00", 88200),
        ("pbs", "-l walltime=00:30:00", 1800),
        ("pbs", "-l walltime=600", 600),
        ("lsf", "-W 2:30", 9000),
        ("lsf", "-W 30", 1800),
        ("flux", "--time-limit=30m", 1800),
        ("flux", "-t 45", 2700),
    ],
)
def test_wall_times(kind: str, line: str, seconds: float, tmp_path: Path) -> None:
    prefix = {"slurm": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB", "flux": "#FLUX:"}[kind]
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/bash\n{prefix} {line}\n", encoding="utf-8")
    assert read_batch_script(path).walltime_s == seconds


def test_directives_of_a_chunk() -> None:
    asked = directives("pbs", ["-l select=4:ngpus=4:system=polaris,walltime=01:00:00", "-q debug"])
    assert asked["nodes"].startswith("4:ngpus=4")
    assert (asked["time"], asked["queue"]) == ("01:00:00", "debug")


# --- samples for batch systems ---------------------------------------------------------------

REFUSED = (SCRIPTS / "vsc-5.sh").read_text(encoding="utf-8")
PLANNER = f"{sys.executable} -m planner"
PLUGINS = {
    "cli_filter": {"CliFilterPlugins": "cli_filter/lua"},
    "job_submit": {"JobSubmitPlugins": "lua"},
}


@pytest.mark.slow
@pytest.mark.skipif(bool(slurm.missing()), reason=slurm.missing())
@pytest.mark.parametrize("sample", ["cli_filter", "job_submit"])
def test_slurm_refuses_what_will_not_fit(sample: str, tmp_path: Path) -> None:
    shutil.copy(HOOKS / f"{sample}.lua", tmp_path)
    for name in ("vsc-5.sh", "acc.yaml"):
        shutil.copy(SCRIPTS / name, tmp_path)
    fitting = tmp_path / "fits.sh"
    fitting.write_text(REFUSED.replace("acc.yaml", "offload.yaml"), encoding="utf-8")
    settings = (SCRIPTS / "acc.yaml").read_text(encoding="utf-8")
    mended = settings.replace("offload_params: false", "offload_params: true")
    (tmp_path / "offload.yaml").write_text(mended, encoding="utf-8")
    unknown = tmp_path / "unknown.sh"
    unknown.write_text("#!/bin/bash\n#SBATCH -p normal\nhostname\n", encoding="utf-8")
    variables = {"PLANNER": PLANNER, "PYTHONPATH": str(ROOT)}
    with slurm.controller(tmp_path, PLUGINS[sample], **variables) as known:
        codes, said = {}, {}
        for name in ("vsc-5.sh", "fits.sh", "unknown.sh"):
            done = subprocess.run(
                ["sbatch", "--test-only", "--account=test", name],
                cwd=tmp_path, env=known, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            codes[name], said[name] = done.returncode, done.stderr
    assert codes == {"vsc-5.sh": 1, "fits.sh": 0, "unknown.sh": 0}, said
    assert "out of memory" in said["vsc-5.sh"]
    assert "offload none -> all-cpu" in said["vsc-5.sh"]


class _Event:
    def __init__(self, folder: Path, script: str) -> None:
        variables = {"PBS_O_WORKDIR": str(folder)}
        self.job = types.SimpleNamespace(Variable_List=variables, Submit_arguments=f"-A p {script}")

    def accept(self) -> None:
        raise SystemExit(0)

    def reject(self, reason: str) -> None:
        raise SystemExit(reason)


@pytest.mark.parametrize(("script", "word"), [("polaris.pbs", "out of memory"), ("job.sh", "")])
def test_the_sample_for_pbs(script: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the server's module `pbs`."""
    module = types.ModuleType("pbs")
    event = _Event(SCRIPTS, script)
    module.event = lambda: event  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pbs", module)
    monkeypatch.setenv("PLANNER", PLANNER)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    text = (HOOKS / "pbs_hook.py").read_text(encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        exec(compile(text, "pbs_hook.py", "exec"), {})
    assert word in str(end.value.code)
    assert (end.value.code == 0) == (not word)
