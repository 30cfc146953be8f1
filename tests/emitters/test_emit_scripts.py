"""Job scripts: bash, shellcheck, the rules of PBS sites and a real Slurm controller."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import planner
from planner.describe.catalogue import load_machine, names
from planner.describe.layout import Layout
from planner.emitters.batch_job import BatchJob
from planner.emitters.scripts.systems import SYSTEMS
from planner.errors import EmitError
from tests.descriptions import scenario
from tests.emitters import slurm
from tests.emitters.emitted import place_files, run_on, scripts

# --- job scripts -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked"),
    [("vsc-5", "--gres=gpu:1"), ("perlmutter", "--gpus-per-node=1"), ("leonardo", "--gres=gpu:1")],
)
def test_a_part_of_a_node_is_asked_for(name: str, asked: str) -> None:
    part = load_machine(name, devices=1)
    files = place_files(part)
    assert f"#SBATCH {asked}\n" in files["job.sh"]
    assert "#SBATCH --nodes=1\n" in files["job.sh"]
    whole = load_machine(name).scheduler.launch
    assert whole is not None
    assert part.scheduler.launch is not None
    # nothing else of what the site wants has changed
    kept = [word for word in whole.directives if "gpu:" not in word and "--gpus" not in word]
    assert [word for word in part.scheduler.launch.directives if word in kept] == kept
    # the folder still names a machine that its reader has
    assert f"--machine {name}" in files["README.md"]


PLACES = [name for name in names("machine") if load_machine(name).scheduler.kind in SYSTEMS]


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_bash_reads_the_scripts(name: str, framework: str) -> None:
    for text in scripts(place_files(name, framework)).values():
        done = run_on(text, "bash", "-n")
        assert (done.returncode, done.stderr) == (0, "")
        assert text.startswith("#!/bin/bash")
        assert "set -euo pipefail" in text


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", PLACES)
def test_shellcheck_finds_nothing(name: str, tmp_path: Path) -> None:
    found = [
        text
        for framework in ("deepspeed", "accelerate", "ddp")
        for text in scripts(place_files(name, framework)).values()
    ]
    paths = [tmp_path / f"{number}.sh" for number in range(len(found))]
    for path, text in zip(paths, found, strict=True):
        path.write_text(text)
    done = run_on("", "shellcheck", "-S", "info", *map(str, paths))
    assert (done.returncode, done.stdout) == (0, "")


PBS_OPTIONS = {
    "N": r"[A-Za-z][\w.-]{0,229}",
    "q": r"[\w.-]+",
    "A": r"[\w-]+",
    "k": r"doe",
    "j": r"oe",
    "l": r"select=\d+|walltime=\d\d:\d\d:\d\d|place=scatter|filesystems=\w+(:\w+)*",
}
MANDATORY = {"alcf": {"select", "walltime", "filesystems"}}


def pbs_directives(text: str) -> dict[str, str]:
    """Directives of a script as PBS reads them: up to the first line that is no comment."""
    found: dict[str, str] = {}
    shebang, *rest = text.splitlines()
    assert shebang == "#!/bin/bash -l"
    for line in rest:
        if not line.startswith("#PBS"):
            # PBS may take a comment between directives for one of them
            assert not line.startswith("#")
            break
        match = re.fullmatch(r"#PBS -(\w) (\S+)", line)
        assert match, line
        option, value = match.groups()
        assert re.fullmatch(PBS_OPTIONS[option], value), line
        key = value.partition("=")[0] if option == "l" else option
        assert key not in found, f"{key} stands twice"
        found[key] = value.partition("=")[2] or value
    assert "#PBS" not in text.partition("\n\n")[2]
    return found


def seconds(walltime: str) -> int:
    hours, minutes, rest = map(int, walltime.split(":"))
    return 3600 * hours + 60 * minutes + rest


@pytest.mark.parametrize(
    ("machine", "nodes", "queue", "hours"),
    [
        ("polaris", 2, "debug", 1),
        ("polaris", 16, "prod", 3),
        ("polaris", 64, "prod", 6),
        ("polaris", 128, "prod", 24),
        ("aurora", 16, "debug-scaling", 1),
        ("aurora", 512, "prod", 12),
        ("sophia", 8, "by-node", 24),
    ],
)
def test_pbs_directives(machine: str, nodes: int, queue: str, hours: float) -> None:
    # as many steps as the queue's limit holds, whatever the step takes
    text = place_files(machine, nodes=nodes, steps=1 if hours == 1 else 10**7)["job.sh"]
    given = pbs_directives(text)
    assert MANDATORY["alcf"] <= set(given)
    assert given["q"] == queue
    assert int(given["select"]) == nodes
    assert seconds(given["walltime"]) <= hours * 3600
    if hours > 1:
        assert seconds(given["walltime"]) == hours * 3600
    ranks = nodes * load_machine(machine).node.num_devices
    # Open MPI starts one process a node there, PALS one per device
    start = (
        f"mpirun -n {nodes} -N 1 --bind-to none"
        if machine == "sophia"
        else (f"mpiexec --verbose --envall -n {ranks} --ppn ")
    )
    assert start in text


def test_aurora_binds_by_list() -> None:
    """Depth would let the seventh rank straddle the sockets, and cores 0 and 52 are reserved."""
    text = place_files("aurora")["job.sh"]
    (bound,) = re.findall(r"--cpu-bind list:(\S+)", text)
    cores = [range(int(a), int(b) + 1) for a, b in (part.split("-") for part in bound.split(":"))]
    assert len(cores) == 12
    used = [core for part in cores for core in part]
    assert len(set(used)) == len(used)
    assert not {0, 52} & set(used)
    assert all({core // 52 for core in part} in ({0}, {1}) for part in cores)
    assert "export CCL_PROCESS_LAUNCHER=pmix\n" in text


def test_ranks_reach_torch() -> None:
    wrapper = place_files("polaris")["rank.sh"]
    done = subprocess.run(
        ["bash", "-c", wrapper, "rank.sh", "bash", "-c", 'echo "$RANK $LOCAL_RANK"'],
        env={"PATH": os.environ["PATH"], "PMI_RANK": "5", "PMI_LOCAL_RANK": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "5 1\n"
    # one device is visible to each process there, and it is number 0
    assert "LOCAL_RANK=0" in place_files("frontier")["rank.sh"]


@pytest.mark.parametrize("machine", ["polaris", "perlmutter"])
def test_submitting_needs_an_account(machine: str, tmp_path: Path) -> None:
    text = place_files(machine)["submit.sh"]
    (tmp_path / "submit.sh").write_text(text)
    command = "qsub" if machine == "polaris" else "sbatch"
    (tmp_path / command).write_text('#!/bin/bash\necho "$@" | tee called\n')
    (tmp_path / command).chmod(0o755)
    clean = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    stopped = submit(tmp_path, clean)
    assert stopped.returncode != 0
    assert stopped.stdout == ""
    (sentence,) = stopped.stderr.splitlines()
    assert sentence.endswith("PROJECT: set it to the account that pays for the job")
    done = submit(tmp_path, {**clean, "PROJECT": "climate"})
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "called").read_text()
    assert "climate" in asked
    assert asked.endswith("job.sh\n")


def submit(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "submit.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_job_without_its_program_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(place_files("workstation-4x4090")["job.sh"])
    done = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "train.py is missing: put it here, or set PROGRAM to its path\n"


def test_a_workstation_runs_its_program(tmp_path: Path) -> None:
    """The whole script runs: torchrun is a stand-in that prints what it was asked."""
    for name, text in place_files("workstation-4x4090").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "torchrun").write_text('#!/bin/bash\necho "torchrun $*"\n')
    (tmp_path / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = "torchrun --standalone --nproc-per-node=4 train.py --deepspeed --deepspeed_config"
    assert done.stdout.startswith(wanted)
    assert (tmp_path / "run.log").read_text() == done.stdout


# what a site's own commands do, as far as one machine can stand in for it
STAND_INS = {
    "module": "exit 0",
    "conda": "exit 0",
    "scontrol": "echo 127.0.0.1",
    "srun": 'while [[ "$1" == --* ]]; do shift; done\nexec "$@"',
    "mpiexec": (
        'count="$(sed -E "s/.* -n ([0-9]+) .*/\\1/" <<< "$*")"\n'
        'while [[ "$1" != bash ]]; do shift; done\n'
        "for ((rank = 0; rank < count; rank++)); do\n"
        '    PMI_RANK="$rank" PMI_LOCAL_RANK="$rank" "$@" &\n'
        "done\nwait"
    ),
}
TRAIN = """
import os
import torch.distributed as dist
import torch

dist.init_process_group("gloo")
total = torch.tensor([1 << dist.get_rank()])
dist.all_reduce(total)
line = f"all {total.item()} of {dist.get_world_size()} {os.environ['LOCAL_RANK']}\\n"
os.write(1, line.encode())  # at once: ranks share the output
dist.destroy_process_group()
"""


@pytest.mark.alone
@pytest.mark.parametrize("machine", ["polaris", "vsc-5", "workstation-2x4090"])
def test_the_ranks_of_a_job_meet(machine: str, tmp_path: Path) -> None:
    """The whole script with real ranks: each adds its bit, and all see the sum."""
    pytest.importorskip("torch")
    text = place_files(machine, nodes=1, framework="ddp", optimizer="adam", steps=1)
    for name, content in text.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "configurator.py").write_text("")  # that of nanoGPT
    commands = tmp_path / "bin"
    commands.mkdir()
    starts = {"python3": "", "torchrun": " -m torch.distributed.run"}
    own = {name: f'exec "{sys.executable}"{module} "$@"' for name, module in starts.items()}
    for name, content in {**STAND_INS, **own}.items():
        (commands / name).write_text(f"#!/bin/bash\n{content}\n")
        (commands / name).chmod(0o755)
    (tmp_path / "nodes").write_text("127.0.0.1\n127.0.0.1\n")
    environment = {
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PBS_O_WORKDIR": str(tmp_path),
        "PBS_NODEFILE": str(tmp_path / "nodes"),
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_ID": "1",
        "SLURM_JOB_NODELIST": "n1",
        "OMP_NUM_THREADS": "1",
        "LEARNING_RATE": "1e-3",
        "WARMUP_STEPS": "1",
    }
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    ranks = load_machine(machine).node.num_devices
    seen = re.findall(r"^all (\d+) of (\d+) (\d+)$", done.stdout, re.MULTILINE)
    assert sorted(seen) == [(str(2**ranks - 1), str(ranks), str(i)) for i in range(ranks)], (
        done.stderr
    )
    assert (tmp_path / "run.log").read_text() == done.stdout


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("steps", [1, 1000, 10**7])
def test_wall_times_stay_within_the_queue(name: str, steps: int) -> None:
    machine = load_machine(name)
    layout = Layout(dp=machine.node.num_devices)
    precision = next(p for p in ("bf16", "fp16", "fp32") if p in machine.device.peak_flop_per_s)
    job = {"sequence_length": 1024, "global_batch": layout.global_batch, "precision": precision}
    q = scenario("gpt2", "ddp", machine, **job)
    found = planner.estimate(q.model, machine, layout, workload=q.workload, framework=q.framework)
    place = BatchJob(q, found, 1, steps).slot
    free = [q for q in machine.scheduler.queues if q.min_nodes == 1 and not q.on_request]
    assert (place.queue is None) == (not machine.scheduler.queues)
    assert place.steps * place.jobs >= steps
    if place.queue:
        assert place.queue in free
        assert 0 < place.seconds <= place.queue.max_hours * 3600
        # no shorter queue would have held it
        shorter = [q for q in free if q.max_hours < place.queue.max_hours]
        assert all(q.max_hours * 3600 < place.seconds for q in shorter)
    if place.jobs == 1:
        assert place.seconds >= steps * found.interval_step_time_s[1]


def test_a_queue_by_name() -> None:
    assert "#PBS -q preemptable\n" in place_files("polaris", queue="preemptable")["job.sh"]
    assert "#SBATCH --partition=mine\n" in place_files("dgx-h100", queue="mine")["job.sh"]
    for queue, words in (("prod", "use one of debug"), ("a;b", "not a valid queue name")):
        with pytest.raises(EmitError, match=words):
            place_files("polaris", queue=queue)


def test_a_run_that_is_cut_is_told_of_longer_queues() -> None:
    text = place_files("aurora", nodes=32, steps=10**7)["README.md"]
    assert "requests 01:00:00 in queue debug-scaling" in text
    assert "Longer queues: prod (small) (256-1024 nodes, 12 h)" in text
    assert "capacity (1-16 nodes, 168 h)" in text
    assert "visualization" not in text


def test_a_workstation_has_no_queue() -> None:
    with pytest.raises(EmitError, match="has no scheduler; remove --queue"):
        place_files("workstation-2x4090", queue="night")


def test_no_queue_admits_so_many_nodes() -> None:
    with pytest.raises(EmitError, match="550 nodes fit no queue of polaris"):
        place_files("polaris", nodes=550)


def test_machines_without_a_script() -> None:
    with pytest.raises(EmitError, match="no job script is written for cobalt, the scheduler"):
        place_files("thetagpu")


# --- a real Slurm ----------------------------------------------------------------------------

SLURM = {
    "vsc-5": (1, 2, 61),
    "vsc-5-a40": (1, 45),
    "perlmutter": (1, 64),
    "perlmutter-80gb": (1, 64),
    "frontier": (1, 100, 2000),
    "lumi-g": (1, 8, 512),
    "leonardo": (1, 64),
    "juwels-booster": (1, 64),
    "alps": (1, 100),
    "vista": (1, 64),
    "mn5-acc": (1, 8, 64),
    "jupiter": (1, 512),
    "isambard-ai": (1, 64),
    "jean-zay-a100": (1, 16),
    "dgx-h100": (1, 4),
}


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if slurm.missing():
        pytest.skip(slurm.missing())
    with slurm.controller(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
@pytest.mark.parametrize("machine", SLURM)
def test_slurm_accepts(machine: str, framework: str, controlled: dict[str, str]) -> None:
    # a machine whose profile knows no queue and no limit: the user names both
    known = bool(load_machine(machine).scheduler.queues)
    queue = "" if known else "dgx"
    for nodes in SLURM[machine]:
        for steps in (1, 10**7) if known else (1,):
            files = place_files(
                machine, framework, nodes=nodes, steps=steps, queue=queue, benchmark=steps == 1
            )
            for name in sorted({"job.sh", "collectives.sh"} & set(files)):
                code, said = slurm.offered(files[name], controlled)
                assert code == 0, (said, files[name])
                # "... to start at ... using 64 processors on nodes vsc[1-2] in partition ..."
                assert "to start at" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--gres=gpu:2", "--gres=gpu:4"),
        ("--partition=zen3_0512_a100x2", "--partition=zen3_0512_a100"),
        ("--nodes=2", "--nodes=62"),
        (r"--time=\S+", "--time=96:00:00"),
        ("--ntasks-per-node=1", "--tasks-on-node=1"),
        ("--gres=gpu:2", "--gres=gpu:2 --constraint=hbm80g"),
    ],
)
def test_slurm_refuses_mistakes(old: str, new: str, controlled: dict[str, str]) -> None:
    """The controller is a check only if it refuses what a mistake would ask for."""
    text = place_files("vsc-5", nodes=2)["job.sh"]
    changed, count = re.subn(f"#SBATCH {old}", f"#SBATCH {new}", text, count=1)
    assert count == 1
    code, said = slurm.offered(changed, controlled)
    assert code != 0, said
