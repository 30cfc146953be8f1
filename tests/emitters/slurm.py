"""A real Slurm controller on loopback, for `sbatch --test-only`: no node ever runs anything."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["controller", "missing", "offered"]

_PROGRAMS = ("munged", "slurmctld", "sbatch")
_WAIT_S = 30.0
_MOST_NODES = 2000
# of a site that the controller is told: it looks at each of them for every script, and no test
# asks for more
_DEFAULT = "gpu_regular"
"""Perlmutter's scripts name a QoS and a constraint, but no partition."""

# Nodes and partitions as the sites describe them, not as the profiles under test do: name, nodes,
# threads, devices, features, partition, longest time
_SITES = (
    ("vsc", 61, 256, 2, "", "zen3_0512_a100x2", "3-00:00:00"),
    ("vsca", 45, 32, 2, "", "zen2_0256_a40x2", "3-00:00:00"),
    ("pm", 1536, 128, 4, "gpu", "gpu_regular", "2-00:00:00"),
    ("pmx", 256, 128, 4, "gpu,hbm80g", "gpu_regular", "2-00:00:00"),
    ("fr", 9472, 128, 8, "", "batch", "12:00:00"),
    ("frx", 64, 128, 8, "", "extended", "1-00:00:00"),
    ("lu", 2978, 128, 8, "", "standard-g", "2-00:00:00"),
    ("lud", 50, 128, 8, "", "dev-g", "3:00:00"),
    ("lus", 200, 128, 8, "", "small-g", "3-00:00:00"),
    # the QoS boost_qos_lprod goes beyond the partition's own day
    ("le", 3456, 32, 4, "", "boost_usr_prod", "4-00:00:00"),
    ("ju", 936, 96, 4, "", "booster", "1-00:00:00"),
    ("jud", 16, 96, 4, "", "develbooster", "2:00:00"),
    ("al", 1200, 288, 4, "", "normal", "12:00:00"),
    ("alo", 1200, 288, 4, "", "low", "1-00:00:00"),
    ("ald", 24, 288, 4, "", "debug", "1:30:00"),
    ("vi", 600, 72, 0, "", "gh", "2-00:00:00"),
    ("vid", 8, 72, 0, "", "gh-dev", "2:00:00"),
    ("mn", 1120, 80, 4, "", "acc", "3-00:00:00"),
    ("jp", 5800, 288, 4, "", "booster", "1-00:00:00"),
    ("is", 1320, 288, 4, "", "workq", "1-00:00:00"),
    ("jz", 52, 128, 8, "a100", "gpu_regular", "2-00:00:00"),
    ("dgx", 32, 224, 8, "", "dgx", "1-00:00:00"),
)


def missing() -> str:
    """Why there is no controller here; empty where there is one."""
    absent = [name for name in _PROGRAMS if _which(name) is None]
    return f"{', '.join(absent)} not installed" if absent else ""


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _configuration(folder: Path, port: int, plugins: Mapping[str, str]) -> str:
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
        f"SlurmUser={getpass.getuser()}",
        f"SlurmctldPort={port}",
        "AuthType=auth/munge",
        f"AuthInfo=socket={folder}/munge.socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        "ProctrackType=proctrack/pgid",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "GresTypes=gpu",
        "EnforcePartLimits=ALL",
        "ResumeProgram=/bin/true",
        "SuspendProgram=/bin/true",
        "SuspendTime=60",
        *(f"{option}={plugin}" for option, plugin in plugins.items()),
    ]
    sites = [(site[0], min(site[1], _MOST_NODES), *site[2:]) for site in _SITES]
    for name, nodes, threads, devices, features, *_ in sites:
        gres = f" Gres=gpu:{devices}" if devices else ""
        feature = f" Feature={features}" if features else ""
        lines.append(f"NodeName={name}[1-{nodes}] CPUs={threads}{gres}{feature} State=CLOUD")
    for partition, longest in dict.fromkeys(site[5:] for site in sites):
        members = ",".join(f"{site[0]}[1-{site[1]}]" for site in sites if site[5] == partition)
        default = "YES" if partition == _DEFAULT else "NO"
        lines.append(
            f"PartitionName={partition} Nodes={members} MaxTime={longest} Default={default}"
        )
    return "\n".join(lines) + "\n"


@contextmanager
def controller(
    folder: Path, plugins: Mapping[str, str] | None = None, **variables: str
) -> Iterator[dict[str, str]]:
    """The environment in which `sbatch` finds the controller; both daemons end with the block."""
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "slurm.conf").write_text(_configuration(folder, port, plugins or {}))
    environment = {**os.environ, **variables, "SLURM_CONF": str(folder / "slurm.conf")}
    munged = _munged(folder)
    try:
        ctld = _start([_which("slurmctld") or "", "-D"], folder / "slurmctld.log", environment)
        try:
            _wait(folder, environment)
            yield environment
        finally:
            _end(ctld)
    finally:
        _end(munged)


def _munged(folder: Path) -> subprocess.Popen[bytes]:
    options = {
        "socket": "munge.socket",
        "key-file": "munge.key",
        "pid-file": "munge.pid",
        "seed-file": "munge.seed",
    }
    given = [f"--{option}={folder}/{name}" for option, name in options.items()]
    # --force: a temporary folder lies under one that all may write
    command = [_which("munged") or "", "--foreground", "--force", *given]
    return _start(command, folder / "munged.log", dict(os.environ))


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env=environment)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait(folder: Path, environment: dict[str, str]) -> None:
    """Until the controller answers."""
    until = time.monotonic() + _WAIT_S
    while offered("#!/bin/bash\n", environment)[0] != 0:
        if time.monotonic() > until:
            logs = [(folder / name).read_text()[-800:] for name in ("slurmctld.log", "munged.log")]
            raise RuntimeError("slurmctld did not answer:\n" + "\n".join(logs))
        time.sleep(0.2)


def offered(script: str, environment: dict[str, str]) -> tuple[int, str]:
    """What `sbatch --test-only` says to a script: 0 and when it would start, or why not."""
    done = subprocess.run(
        ["sbatch", "--test-only", "--account=test"],
        input=script,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr
