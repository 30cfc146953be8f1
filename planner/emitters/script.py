"""Script: the job script, what it starts on every node, and the line that submits it.

A machine's profile says how its site starts jobs: one process per device through `rank.sh`, or
one `torchrun` per node. Accelerate has a launcher of its own and is always started once a node.
"""

from __future__ import annotations

import shlex

from planner.describe.machine import Launch
from planner.emitters.batch_job import CHECKPOINTS, FINISHED, BatchJob
from planner.emitters.queue import Slot, directives
from planner.emitters.recipe import File, Recipe
from planner.errors import EmitError

__all__ = ["job_files"]

_PORT = 29500
"""torchrun's own default port."""
_BREAK = " \\\n    "
_SUBMIT = ("sbatch", "qsub")


def job_files(job: BatchJob, recipe: Recipe, slot: Slot) -> list[File]:
    """`job.sh`, and `rank.sh` and `submit.sh` where the machine needs them."""
    kind = job.machine.scheduler.kind
    if kind not in ("pbs", "slurm", "none"):
        raise EmitError(
            f"{job.where} is scheduled by {kind}, for which no job script is written; "
            "emit for a machine with PBS, Slurm or no scheduler"
        )
    if kind == "none" and job.nodes > 1:
        raise EmitError(f"{job.where} has no scheduler to start {job.nodes} nodes; use one node")
    launch = job.machine.scheduler.launch
    per_device = _starts_per_device(launch, recipe)
    files = [File("job.sh", "the job script", _job_script(job, recipe, slot, per_device))]
    if per_device and launch is not None:
        what = "tells torch which rank a process is; `job.sh` starts it once per device"
        files.append(File("rank.sh", what, _rank(launch)))
    if kind != "none":
        text = _submit(job, recipe, launch is not None and launch.account)
        files.append(File("submit.sh", "submits `job.sh` from this folder", text))
    return files


def _starts_per_device(launch: Launch | None, recipe: Recipe) -> bool:
    return (
        launch is not None
        and launch.tasks == "device"
        and launch.rank_variables is not None
        and recipe.launcher == "torch"
    )


def _job_script(job: BatchJob, recipe: Recipe, slot: Slot, per_device: bool) -> str:
    tasks = job.ranks_per_node if per_device else 1
    head = ["#!/bin/bash -l" if job.machine.scheduler.kind == "pbs" else "#!/bin/bash"]
    head += directives(job, slot, tasks)
    parts = [
        [f"# {job.what}", "set -euo pipefail", *_folder(job)],
        _stop(),
        _checks(recipe),
        _setup(job),
        _exports(job, recipe, per_device),
        [f"mapfile -t {_array(name)} < {name}" for name in recipe.argument_files],
        _resume(recipe),
        [f"{_launch(job, recipe, per_device)} 2>&1 | tee -a run.log", f"touch {FINISHED}"],
    ]
    # no comment may stand on or between the directives: PBS reads it as one
    return "\n".join(head) + "\n\n" + "\n\n".join("\n".join(p) for p in parts if p) + "\n"


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
        f"if [[ -e {shlex.quote(recipe.resume.found)} ]]; then",
        f"    RESUME=({words})",
        "fi",
    ]


def _folder(job: BatchJob) -> list[str]:
    """Go to the folder of these files; a scheduler runs a copy of the script elsewhere."""
    where = {"pbs": '"${PBS_O_WORKDIR}"', "slurm": '"${SLURM_SUBMIT_DIR}"'}
    return [f"cd {where.get(job.machine.scheduler.kind, _HERE)}"]


_HERE = '"$(dirname "${BASH_SOURCE[0]}")"'


def _checks(recipe: Recipe) -> list[str]:
    """One sentence where something that only the user can give is missing."""
    lines = [f': "${{{name}:?set it to {what}}}"' for name, what in recipe.variables.items()]
    needed = {f'"{name}"': f"{name} is missing: {what}" for name, what in recipe.needed.items()}
    if recipe.default_program:
        lines.append(f'PROGRAM="${{PROGRAM:-{recipe.default_program}}}"')
        needed['"${PROGRAM}"'] = "${PROGRAM} is missing: put it here, or set PROGRAM to its path"
    for name, sentence in needed.items():
        lines.append(f'[[ -f {name} ]] || {{ echo "{sentence}" >&2; exit 2; }}')
    return lines


def _setup(job: BatchJob) -> list[str]:
    launch = job.machine.scheduler.launch
    lines = list(launch.setup) if launch is not None else []
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


def _exports(job: BatchJob, recipe: Recipe, per_device: bool) -> list[str]:
    kind = job.machine.scheduler.kind
    launch = job.machine.scheduler.launch
    variables = dict(launch.environment) if launch is not None else {}
    variables |= recipe.environment
    lines = [f"export {name}={shlex.quote(value)}" for name, value in sorted(variables.items())]
    if kind == "none":
        return lines
    hosts = (
        "awk '!seen[$0]++' \"${PBS_NODEFILE}\""
        if kind == "pbs"
        else 'scontrol show hostnames "${SLURM_JOB_NODELIST}"'
    )
    lines.append(f"mapfile -t HOSTS < <({hosts})")
    lines.append(f'export MASTER_ADDR="${{HOSTS[0]}}" MASTER_PORT={_PORT}')
    if per_device:
        lines.append(f"export WORLD_SIZE={job.layout.world}")
    return lines


def _array(name: str) -> str:
    return name.partition(".")[0].upper()


def _launch(job: BatchJob, recipe: Recipe, per_device: bool) -> str:
    """The scheduler's launcher, what it starts, and the program with its arguments."""
    words = [_across(job, per_device), _process(job, recipe, per_device)]
    arrays = [f'"${{{_array(name)}[@]}}"' for name in recipe.argument_files]
    resume = ['"${RESUME[@]}"'] if recipe.resume is not None else []
    arguments = " ".join([*arrays, *recipe.arguments, *resume])
    return _BREAK.join(word for word in [*words, arguments] if word)


def _across(job: BatchJob, per_device: bool) -> str:
    """`mpiexec` or `srun` with as many processes as ranks or nodes."""
    launch = job.machine.scheduler.launch
    options: tuple[str, ...] = ()
    if launch is not None:
        options = launch.options if per_device else launch.node_options
    tasks = job.ranks_per_node if per_device else 1
    quoted = " ".join(shlex.quote(option) for option in options)
    if job.machine.scheduler.kind == "pbs":
        count = f"-n {job.nodes * tasks} --ppn {tasks}"
        start = f'mpiexec --verbose --envall {count} --hostfile="${{PBS_NODEFILE}}"'
        return _BREAK.join([start, quoted] if quoted else [start])
    if job.machine.scheduler.kind == "slurm":
        count = f"--ntasks={job.nodes * tasks} --ntasks-per-node={tasks}"
        return f"srun {count} {quoted}".strip()
    return ""


def _process(job: BatchJob, recipe: Recipe, per_device: bool) -> str:
    """What one task starts."""
    if per_device:
        return f"bash rank.sh python3 -u {recipe.program}"
    if recipe.launcher == "accelerate":
        meet = ""
        if job.machine.scheduler.kind != "none":
            meet = f'{_BREAK}--main_process_ip "${{MASTER_ADDR}}"'
            meet += ' --main_process_port "${MASTER_PORT}"'
        return f"accelerate launch --config_file accelerate.yaml{meet}{_BREAK}{recipe.program}"
    nodes = f"--nproc-per-node={job.ranks_per_node}"
    if job.machine.scheduler.kind == "none":
        return f"torchrun --standalone {nodes} {recipe.program}"
    number = "${PBS_JOBID}" if job.machine.scheduler.kind == "pbs" else "${SLURM_JOB_ID}"
    return (
        f'torchrun --nnodes={job.nodes} {nodes} --rdzv-id="{number}"{_BREAK}'
        f'--rdzv-backend=c10d --rdzv-endpoint="${{MASTER_ADDR}}:${{MASTER_PORT}}"{_BREAK}'
        f"{recipe.program}"
    )


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


def _submit(job: BatchJob, recipe: Recipe, account: bool) -> str:
    """The line that submits the job, and stops where the account is missing."""
    lines = ["#!/bin/bash", "set -euo pipefail", f"cd {_HERE}"]
    if account:
        lines.append(': "${PROJECT:?set it to the account that pays for the job}"')
    lines += [f': "${{{name}:?set it to {what}}}"' for name, what in recipe.variables.items()]
    given = [*recipe.variables]
    if recipe.default_program:
        lines.append(f'PROGRAM="${{PROGRAM:-{recipe.default_program}}}"')
        given.append("PROGRAM")
    if given:
        lines.append(f"export {' '.join(given)}")
    pbs = job.machine.scheduler.kind == "pbs"
    option = "-A " if pbs else "--account="
    paid = f'{option}"${{PROJECT}}"' if account else f'${{PROJECT:+{option}"${{PROJECT}}"}}'
    # Slurm hands the whole environment to the job, PBS only what is named
    named = f"-v {','.join(given)}" if pbs and given else ""
    lines.append(" ".join(word for word in ("exec", _SUBMIT[pbs], paid, named, "job.sh") if word))
    return "\n".join(lines) + "\n"
