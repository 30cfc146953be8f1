"""Job script: the batch script of a machine, and the scripts that it starts or that submit it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from planner.choose.jobs.probe import STEPS, Probe
from planner.emitters.batch_job import CHECKPOINTS, FINISHED, BatchJob
from planner.emitters.recipe import File, Recipe
from planner.emitters.scripts.systems import BREAK, SYSTEMS, BatchSystem, values_of
from planner.emitters.text import fill, render
from planner.errors import EmitError
from planner.training.job_slot import Slot

_BENCHMARK_S = 1800.0
_BENCHMARK = Recipe(
    files=(),
    program="-m planner validate",
    default_program="",
    arguments=(
        "collectives --csv --largest 1GiB --limit 600",
        "--operation all_reduce --operation all_gather --operation reduce_scatter",
    ),
)
_PORT = 29500
"""torchrun's own default port."""


def job_files(job: BatchJob, recipe: Recipe, slot: Slot) -> list[File]:
    """Write `job.sh`, and `rank.sh`, `submit.sh` and `job.yaml` if the machine needs them."""
    kind = job.machine.scheduler.kind
    if kind not in SYSTEMS:
        raise EmitError(
            f"no job script is written for {kind}, the scheduler of {job.where}; "
            f"use a machine with one of {', '.join(SYSTEMS)}"
        )
    if kind == "none" and job.nodes > 1:
        raise EmitError(f"{job.where} has no scheduler to start {job.nodes} nodes; use one node")
    system = SYSTEMS[kind]
    script = _Script(job, recipe, slot, system)
    files = [File("job.sh", "the job script", script.text())]
    files += script.wrapper()
    if system.resources:
        files.append(_manifest(job, slot, system, _passed_variables(recipe)))
    if kind != "none":
        text = _submit_script(job, recipe, slot, system)
        files.append(File("submit.sh", "submits `job.sh` from this folder", text))
    return files


def benchmark_files(job: BatchJob, slot: Slot) -> list[File]:
    """Write `collectives.sh`, which times collectives on the job's nodes, launched like the job."""
    kind = job.machine.scheduler.kind
    if SYSTEMS[kind].resources:
        raise EmitError(f"{job.where}: no benchmark is written for {kind}; leave it out")
    longest = slot.queue.max_hours * 3600 if slot.queue is not None else _BENCHMARK_S
    short = replace(slot, seconds=min(longest, _BENCHMARK_S))
    script = _Script(job, _BENCHMARK, short, SYSTEMS[kind])
    meaning = (
        "times all-reduces and gathers over all devices of these nodes, on the network of the job, "
        "with the `planner` of `environment.sh`; submit it instead of `job.sh`, then "
        f"`planner calibrate --from-collectives collectives.csv -m {job.machine.name} -o own.toml`"
    )
    return [File("collectives.sh", meaning, script.text("collectives.sh")), *script.wrapper()]


def probe_scripts(job: BatchJob, recipe: Recipe, slot: Slot, probe: Probe) -> list[File]:
    """Write `job.sh`, which makes several runs in one job, each in its folder, and `submit.sh`."""
    system = SYSTEMS[job.machine.scheduler.kind]
    if system.resources:
        raise EmitError(
            f"{job.where}: no probe is written for Kubernetes; emit its runs one by one"
        )
    script = _Script(job, recipe, slot, system)
    text = script.text("probe.sh", probe=probe, steps=STEPS, links=list(recipe.needed), job=job)
    files = [File("job.sh", "the job script", text)]
    if system.submission is not None:
        text = _submit_script(job, recipe, slot, system)
        files.append(File("submit.sh", "submits `job.sh` from this folder", text))
    return files


class _Script:
    """The values that fill in a job script."""

    def __init__(self, job: BatchJob, recipe: Recipe, slot: Slot, system: BatchSystem) -> None:
        self.job, self.recipe, self.slot, self.system = job, recipe, slot, system
        starts_each = job.launch.tasks == "device" and job.launch.rank_variables is not None
        self.wrapped = starts_each and recipe.launcher == "torch"
        """Whether the site's launcher starts every process through `rank.sh`."""
        self.per_device = self.wrapped or recipe.launcher in ("ezpz", "horovod")
        self.tasks = job.ranks_per_node if self.per_device else 1

    def text(self, template: str = "job.sh", **values: Any) -> str:
        """Fill in the script."""
        return render(template, **self._values(), **values)

    def wrapper(self) -> list[File]:
        """Write `rank.sh`, if processes start through it."""
        launch = self.job.launch
        if not self.wrapped or launch.rank_variables is None:
            return []
        rank, local_rank = launch.rank_variables
        one_device_each = launch.one_device_each
        text = render("rank.sh", rank=rank, local_rank=local_rank, one_device_each=one_device_each)
        purpose = "tells torch which rank a process is; `job.sh` starts it once per device"
        return [File("rank.sh", purpose, text)]

    def _values(self) -> dict[str, Any]:
        job, recipe, system = self.job, self.recipe, self.system
        network = job.machine.network
        variables = self._variables()
        needed = {
            f'"{name}"': f"{name} is missing: {meaning}" for name, meaning in recipe.needed.items()
        }
        if recipe.default_program:
            missing = "${PROGRAM} is missing: put it here, or set PROGRAM to its path"
            needed['"${PROGRAM}"'] = missing
        return {
            "shebang": system.shebang,
            "directives": self._directives(),
            "summary": job.summary,
            "folder": system.folder,
            "finished": FINISHED,
            "checkpoints": CHECKPOINTS,
            "variables": recipe.variables,
            "program": recipe.default_program,
            "needed": needed,
            "setup": [*job.launch.setup, *(network.setup if network is not None else ())],
            "exports": dict(sorted(variables.items())),
            "unset": sorted(self._stray_variables() - set(variables)),
            "hosts": system.hosts,
            "port": _PORT,
            "world": job.layout.world if self.wrapped else 0,
            "argument_files": {_array(name): name for name in recipe.argument_files},
            "resume": recipe.resume,
            "log": system.log,
            "command": self._command(variables),
        }

    def _variables(self) -> dict[str, str]:
        launch = self.job.launch
        places = launch.device_environment if self.per_device else launch.node_environment
        variables = {**launch.environment, **places}
        if (network := self.job.machine.network) is not None:
            variables |= network.environment
        if self._binds:
            # torchrun and `accelerate launch` set it to 1 otherwise
            cores = int(self.job.machine.node.num_cores.value)
            variables["OMP_NUM_THREADS"] = str(max(cores // self.job.ranks_per_node, 1))
        if self.recipe.launcher == "ezpz":
            words = self.system.inherited
            variables |= dict(zip(words, self._filled(words.values()), strict=True))
        return variables | dict(self.recipe.environment)

    @property
    def _binds(self) -> bool:
        """Whether a node's launcher gives ranks cores of their own, for updates on the host."""
        updates = self.job.layout.offload != "none" and self.job.framework.offloading.bound
        return updates and not self.per_device and self.job.ranks_per_node > 1

    def _stray_variables(self) -> set[str]:
        """Variables of all networks of the machine and of one process per device."""
        networks = self.job.machine.networks
        return {
            *(n for each in networks for n in each.environment),
            *self.job.launch.device_environment,
        }

    def _command(self, variables: Mapping[str, str]) -> str:
        """The command: the scheduler's launcher, the process it starts, the program's arguments."""
        arrays = [f'"${{{_array(name)}[@]}}"' for name in self.recipe.argument_files]
        resume = ['"${RESUME[@]}"'] if self.recipe.resume is not None else []
        arguments = " ".join([*arrays, *self.recipe.arguments, *resume])
        across = ""
        if self.recipe.launcher != "ezpz":
            across = BREAK.join(filter(None, self._filled(self.system.across, sorted(variables))))
        return BREAK.join(word for word in [across, self._process(), arguments] if word)

    def _process(self) -> str:
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
        binds = self._binds and job.machine.device.runtime == "cuda"
        words = [*self._filled(self.system.torchrun), *["--numa-binding=exclusive"] * binds]
        return BREAK.join([f"torchrun {BREAK.join(words)}", program])

    def _filled(self, words: Iterable[str], exported: Iterable[str] = ()) -> list[str]:
        values = values_of(self.job, self.slot, self.tasks, exported)
        return [fill(word, **values).rstrip() for word in words]

    def _directives(self) -> list[str]:
        launch, queue = self.job.machine.scheduler.launch, self.slot.queue
        system = self.system
        if not system.directives:
            return []
        usual = filter(None, self._filled(system.usual))
        lines = [
            *self._filled(system.directives),
            *(usual if launch is None else launch.directives),
        ]
        if queue is not None:
            lines += queue.directives or (f"{system.queue}{queue.name}",)
        return [f"{system.prefix} {line}" for line in lines]


def _array(name: str) -> str:
    return name.partition(".")[0].upper()


def _passed_variables(recipe: Recipe) -> list[str]:
    return [*recipe.variables, *(["PROGRAM"] if recipe.default_program else [])]


def _manifest(job: BatchJob, slot: Slot, system: BatchSystem, exported: list[str]) -> File:
    runtime = job.machine.device.runtime
    if runtime not in system.resources:
        raise EmitError(
            f"the devices of {job.where} ({runtime}) have no name known to Kubernetes; emit for a "
            "machine with cuda or rocm"
        )
    text = render(
        "job.yaml",
        "",
        ".yaml",
        # only characters of a DNS label
        name=job.name.lower().replace("_", "-").replace(".", "-"),
        queue=slot.queue.name if slot.queue is not None else None,
        pods={"Master": 1, "Worker": job.nodes - 1},
        exported=exported,
        cpus=values_of(job, slot, 1, ())["cpus"],
        resource=system.resources[runtime],
        devices=job.ranks_per_node,
    )
    return File("job.yaml", "the PyTorchJob, for Kubeflow's training operator", text)


def _submit_script(job: BatchJob, recipe: Recipe, slot: Slot, system: BatchSystem) -> str:
    has_account = job.launch.account
    required = {"PROJECT": "the account that pays for the job"} if has_account else {}
    exported = _passed_variables(recipe)
    return render(
        "submit.sh",
        finished=FINISHED,
        account=job.account,
        variables={**required, **system.variables, **recipe.variables},
        program=recipe.default_program,
        exported=exported,
        submission=system.submission,
        jobs=slot.chained,
        command=_submit_command(system, exported, has_account or bool(job.account)),
    )


def _submit_command(system: BatchSystem, names: list[str], has_account: bool) -> str:
    submission = system.submission
    if submission is None:
        filled = [f'-e "s|\\${{{name}}}|${{{name}}}|g"' for name in (*system.variables, *names)]
        return f"sed {BREAK.join(filled)} job.yaml{BREAK}| kubectl apply -f -"
    option = submission.account
    paid = f'{option}"${{PROJECT}}"' if has_account else f'${{PROJECT:+{option}"${{PROJECT}}"}}'
    passed = f"{system.passes}{','.join(names)}" if system.passes and names else ""
    words = [submission.command, paid, passed, '"${after[@]}"', "job.sh"]
    return " ".join(word for word in words if word)
