"""Job: the job script, and what it starts on every node.

A machine's profile says how its site starts jobs: one process per device through `rank.sh`, or
one `torchrun` per node. Accelerate has a launcher of its own and is always started once a node;
ezpz calls the site's launcher itself. Horovod's processes ask MPI which rank they are.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from planner.describe.machine import Launch
from planner.emitters.batch_job import CHECKPOINTS, FINISHED, BatchJob
from planner.emitters.queue import Slot
from planner.emitters.recipe import File, Recipe
from planner.emitters.scripts.known import SYSTEMS
from planner.emitters.scripts.kubernetes import Kubernetes, manifest
from planner.emitters.scripts.submit import handed_on, submit_script
from planner.emitters.scripts.system import BREAK, BatchSystem
from planner.errors import EmitError

__all__ = ["benchmark_files", "job_files"]

_BENCHMARK_S = 1800.0
_BENCHMARK = Recipe(
    files=(),
    program="-m planner.validate",
    default_program="",
    arguments=(
        "collectives --csv --largest 1GiB --limit 600",
        "--operation all_reduce --operation all_gather --operation reduce_scatter",
    ),
)
_PORT = 29500
"""torchrun's own default port."""


def job_files(job: BatchJob, recipe: Recipe, slot: Slot) -> list[File]:
    """`job.sh`, and `rank.sh`, `submit.sh` and `job.yaml` where the machine needs them."""
    kind = job.machine.scheduler.kind
    if kind not in SYSTEMS:
        raise EmitError(
            f"{job.where} is scheduled by {kind}, for which no job script is written; "
            f"emit for a machine with one of {', '.join(SYSTEMS)}"
        )
    if kind == "none" and job.nodes > 1:
        raise EmitError(f"{job.where} has no scheduler to start {job.nodes} nodes; use one node")
    system, launch = SYSTEMS[kind], job.machine.scheduler.launch
    script = _Script(job, recipe, slot, system)
    files = [File("job.sh", "the job script", script.text())]
    if script.wrapped and launch is not None:
        purpose = "tells torch which rank a process is; `job.sh` starts it once per device"
        files.append(File("rank.sh", purpose, _rank(launch)))
    if isinstance(system, Kubernetes):
        files.append(manifest(job, slot, handed_on(recipe)))
    if kind != "none":
        text = submit_script(job, recipe, slot, system)
        files.append(File("submit.sh", "submits `job.sh` from this folder", text))
    return files


def benchmark_files(job: BatchJob, slot: Slot) -> list[File]:
    """`collectives.sh`, which times collectives on the job's nodes as the job would run them."""
    kind, launch = job.machine.scheduler.kind, job.machine.scheduler.launch
    if isinstance(SYSTEMS[kind], Kubernetes):
        raise EmitError(f"{job.where}: no benchmark is written for {kind}; leave it out")
    longest = slot.queue.max_hours * 3600 if slot.queue is not None else _BENCHMARK_S
    short = replace(slot, seconds=min(longest, _BENCHMARK_S))
    script = _Script(job, _BENCHMARK, short, SYSTEMS[kind])
    meaning = (
        "times all-reduces and gathers over all devices of these nodes, on the network of the job, "
        "with the `planner` of `environment.sh`; submit it in the place of `job.sh`, then "
        f"`planner calibrate --from-collectives collectives.csv -m {job.machine.name} -o own.toml`"
    )
    files = [File("collectives.sh", meaning, script.once("collectives.csv"))]
    if script.wrapped and launch is not None:
        files.append(File("rank.sh", "tells torch which rank a process is", _rank(launch)))
    return files


class _Script:
    """The parts of one job script."""

    def __init__(self, job: BatchJob, recipe: Recipe, slot: Slot, system: BatchSystem) -> None:
        self.job, self.recipe, self.slot, self.system = job, recipe, slot, system
        launch = job.machine.scheduler.launch
        self.wrapped = (
            launch is not None
            and launch.tasks == "device"
            and launch.rank_variables is not None
            and recipe.launcher == "torch"
        )
        """Whether every process is started by the site's launcher, through `rank.sh`."""
        self.per_device = self.wrapped or recipe.launcher in ("ezpz", "horovod")
        self.tasks = job.ranks_per_node if self.per_device else 1

    def text(self) -> str:
        """The whole script; no comment may stand on or between the directives of PBS."""
        head = [self.system.shebang, *self.system.directives(self.job, self.slot, self.tasks)]
        folder = [f"cd {self.system.folder}"] if self.system.folder else []
        files = self.recipe.argument_files
        parts = [
            [f"# {self.job.summary}", "set -euo pipefail", *folder],
            _stop(),
            _checks(self.recipe),
            _setup(self.job),
            self._exports(),
            [f"mapfile -t {_array(name)} < {name}" for name in files],
            _resume(self.recipe),
            [*self.system.log, f'{self._launch()} 2>&1 | tee -a "${{LOG}}"', f"date > {FINISHED}"],
        ]
        return "\n".join(head) + "\n\n" + "\n\n".join("\n".join(p) for p in parts if p) + "\n"

    def once(self, output: str) -> str:
        """A script that runs once, whatever became of a training, and keeps what is printed."""
        head = [self.system.shebang, *self.system.directives(self.job, self.slot, self.tasks)]
        folder = [f"cd {self.system.folder}"] if self.system.folder else []
        parts = [
            ["set -euo pipefail", *folder],
            _setup(self.job),
            self._exports(),
            [f"{self._launch()} > {output}"],
        ]
        return "\n".join(head) + "\n\n" + "\n\n".join("\n".join(p) for p in parts) + "\n"

    def _variables(self) -> dict[str, str]:
        """Variables of the site and of the framework."""
        launch = self.job.machine.scheduler.launch
        variables = dict(launch.environment) if launch is not None else {}
        if launch is not None:
            variables |= launch.device_environment if self.per_device else launch.node_environment
        if (network := self.job.machine.network) is not None:
            variables |= network.environment
        if self.recipe.launcher == "ezpz":
            variables |= self.system.inherited(self.job, self.tasks)
        return variables | dict(self.recipe.environment)

    def _exports(self) -> list[str]:
        """Those variables, and where the processes meet."""
        variables, launch = self._variables(), self.job.machine.scheduler.launch
        lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
        stray = {name for network in self.job.machine.networks for name in network.environment}
        stray |= set(launch.device_environment) if launch is not None else set()
        stray -= set(variables)
        if stray:
            lines.append(f"unset {' '.join(sorted(stray))}")
        if not self.system.hosts:
            return lines
        lines.append(f"mapfile -t HOSTS < <({self.system.hosts})")
        lines.append(f'export MASTER_ADDR="${{HOSTS[0]}}" MASTER_PORT={_PORT}')
        if self.wrapped:
            lines.append(f"export WORLD_SIZE={self.job.layout.world}")
        return lines

    def _launch(self) -> str:
        """The scheduler's launcher, what it starts, and the program with its arguments."""
        arrays = [f'"${{{_array(name)}[@]}}"' for name in self.recipe.argument_files]
        resume = ['"${RESUME[@]}"'] if self.recipe.resume is not None else []
        arguments = " ".join([*arrays, *self.recipe.arguments, *resume])
        across = ""
        if self.recipe.launcher != "ezpz":
            across = self.system.across(self.job, self.tasks, sorted(self._variables()))
        return BREAK.join(word for word in [across, self._process(), arguments] if word)

    def _process(self) -> str:
        """What one task starts."""
        job, program = self.job, self.recipe.program
        if self.wrapped:
            return f"bash rank.sh python3 -u {program}"
        if self.recipe.launcher == "ezpz":
            count = f"-n {job.nodes * self.tasks} -ppn {self.tasks}"
            return f"ezpz launch {count} -- python3 -u {program}"
        if self.recipe.launcher == "horovod":
            prefix = "" if self.system.hosts else f"horovodrun -np {job.layout.world} "
            return f"{prefix}python3 -u {program}"
        if self.recipe.launcher == "accelerate":
            start = "accelerate launch --config_file accelerate.yaml"
            return BREAK.join([start, *self.system.meeting, program])
        if self.recipe.launcher == "none":
            return f"python3 -u {program}"
        return BREAK.join([f"torchrun {self.system.torchrun(job)}", program])


def _stop() -> list[str]:
    """The jobs that wait in a row end at once when one of them came to its last step."""
    return [
        f"if [[ -e {FINISHED} ]]; then",
        f'    echo "all steps are done; remove {FINISHED} to train on"',
        "    exit 0",
        "fi",
        f"mkdir -p {CHECKPOINTS}",
    ]


def _resume(recipe: Recipe) -> list[str]:
    """What the program is told where a job before this one saved a checkpoint."""
    if recipe.resume is None:
        return []
    words = " ".join(recipe.resume.arguments)
    return [
        "RESUME=()",
        f"if [[ -e {shlex.quote(recipe.resume.checkpoint)} ]]; then",
        f"    RESUME=({words})",
        "fi",
    ]


def _checks(recipe: Recipe) -> list[str]:
    """One sentence where something that only the user can give is missing."""
    lines = [f': "${{{name}:?set it to {meaning}}}"' for name, meaning in recipe.variables.items()]
    needed = {
        f'"{name}"': f"{name} is missing: {meaning}" for name, meaning in recipe.needed.items()
    }
    if recipe.default_program:
        lines.append(f'PROGRAM="${{PROGRAM:-{recipe.default_program}}}"')
        needed['"${PROGRAM}"'] = "${PROGRAM} is missing: put it here, or set PROGRAM to its path"
    for name, sentence in needed.items():
        kind = "-d" if name.endswith('/"') else "-f"
        lines.append(f'[[ {kind} {name} ]] || {{ echo "{sentence}" >&2; exit 2; }}')
    return lines


def _setup(job: BatchJob) -> list[str]:
    launch = job.machine.scheduler.launch
    lines = list(launch.setup) if launch is not None else []
    lines += job.machine.network.setup if job.machine.network is not None else ()
    return [
        "# modules and conda read variables that are not set",
        "set +u",
        *lines,
        "# your own environment: write its activation into environment.sh",
        "if [[ -f environment.sh ]]; then",
        "    # shellcheck source=/dev/null",
        "    source environment.sh",
        "fi",
        "set -u",
    ]


def _array(name: str) -> str:
    return name.partition(".")[0].upper()


def _rank(launch: Launch) -> str:
    """The wrapper that tells torch which rank a process is."""
    assert launch.rank_variables is not None, "asked only where it is known"
    rank, local = launch.rank_variables
    number = "0" if launch.one_device_each else f'"${{{local}}}"'
    why = (
        "# the launcher shows each process its own device only\n" if launch.one_device_each else ""
    )
    return (
        "#!/bin/bash\n# started once per device: torch reads its rank from these variables\n"
        f'set -euo pipefail\n{why}export RANK="${{{rank}}}" LOCAL_RANK={number}\nexec "$@"\n'
    )
