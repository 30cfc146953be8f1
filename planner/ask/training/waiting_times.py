"""Waiting times: the start-up of a job, part by part, and input data of its steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, plan_point
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import count_range, doublings, scan
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_dataset
from planner.describe.training.training_run import (
    Dataset,
    Environment,
    Loader,
    Loading,
    Staging,
    StartUp,
)
from planner.training.data import Change, InputTime, changes, input_time
from planner.training.resilience.start import START_PARTS, start_up
from planner.units import counted, format_bytes, format_seconds

_LEAST_GAIN = 0.005
"""Smallest gain of utilisation that counts as a help."""


@question
def startup(
    job: JobSpec,
    *,
    nodes: int = 1,
    most_nodes: int | None = None,
    environment: Environment = "file-system",
    loading: Loading = "none",
    global_groups: bool = False,
    compile_s: float = 0.0,
    data_index_s: float = 0.0,
    warm_up_s: float = 0.0,
    **_: Unpack[JobFields],
) -> Findings:
    """Show the start-up time of a job on doublings of the nodes, for the recommended layouts.

    Parts run one after another: launch, imports, process groups, communicators, the model, its
    weights, the dataset's index, compilation, slower first steps. Parts that depend on the machine
    and the ranks are modelled; the others take the time that the options state.
    """
    start = StartUp(
        environment=environment,
        loading=loading,
        ordered_groups=not global_groups,
        compile_s=compile_s,
        data_index_s=data_index_s,
        warm_up_s=warm_up_s,
    )
    points = scan(job, "nodes", doublings(count_range(job, nodes, most_nodes)))
    rows = [_start_row(point, start) for _, point in points.by_value()]
    # drop the columns of parts that are 0 in every row
    empty = {f"{name}_s" for name in START_PARTS}
    empty -= {name for row in rows for name in empty if row.get(name)}
    fitting = [row for row in rows if row["fits"]]
    times = ", in ".join(
        f"{format_seconds(row['start_s'])} on {counted(row['nodes'], 'node')} ({row['reason']})"
        for row in (*fitting[:1], *fitting[1:][-1:])
    )
    verdict = f"A job of {job.model.name} on {job.machine.name} starts in {times}."
    if not fitting:
        reason = rows[-1]["reason"]
        verdict = f"{job.model.name} fits on no node count that was planned: {reason}."
    return Findings(
        verdict,
        [{name: row[name] for name in row if name not in empty} for row in rows],
        notes=[
            *(_other_starts(points.fitting()[-1], start) if fitting else ()),
            "Not counted: waiting in the queue, modules, staging before the launch, evaluation "
            "before the first step. Imports are those of a first run, as measured on 8 nodes of "
            "Frontier; they take seconds where the nodes have the files in memory.",
            "Compilation, the dataset's index and slower first steps are as long as stated.",
        ],
        success=bool(fitting),
    )


def _start_parts(point: PlanPoint, start: StartUp) -> dict[str, float]:
    scenario, best = point.recommended()
    parts = start_up(scenario, Layouts.of(best.layout), start)
    return {name: float(seconds) for name, seconds in parts.items()}


def _start_row(point: PlanPoint, start: StartUp) -> Row:
    if point.best is None:
        return point.row()
    parts = _start_parts(point, start)
    total, largest = sum(parts.values()), max(parts, key=lambda name: parts[name])
    return {
        **point.columns,
        "framework": point.best.framework,
        "layout": str(point.best.layout),
        "start_s": total,
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        "node_hours": point.nodes * total / 3600,
        "reason": f"{START_PARTS[largest]} {100 * parts[largest] / total:.0f} %",
    }


def _other_starts(point: PlanPoint, start: StartUp) -> Iterator[str]:
    """Compare other ways to start, using the same formulas."""
    now_s, place = sum(_start_parts(point, start).values()), f"on {counted(point.nodes, 'node')}"
    if start.environment != "local-disk" and point.machine.num_nodes.value > 1:
        local = start.replaced(environment="local-disk")
        local_s = sum(_start_parts(point, local).values())
        yield (
            f"With the Python environment brought to the nodes as one file (sbcast, a container, a "
            f"squashed image) the start takes {format_seconds(local_s)} {place}, "
            f"{format_seconds(now_s - local_s)} less, plus the time to bring it there."
        )
    unordered = start.replaced(ordered_groups=False)
    waiting_s = sum(_start_parts(point, unordered).values())
    if waiting_s - now_s > 1:  # 0 if all ranks wait already
        yield (
            f"If all ranks wait for each other at every new group, as with torch's new_group "
            f"without use_local_synchronization, the start takes {format_seconds(waiting_s)} "
            f"{place}, by an assumed time of such a wait; device meshes do not wait."
        )


@dataclass(frozen=True, slots=True)
class _Input:
    """Input pipeline of a step; other node counts keep the batch per node."""

    job: JobSpec
    step_s: float
    ranks_per_node: float
    dataset: Dataset
    loader: Loader

    @property
    def epochs(self) -> float:
        """Number of epochs, at least two because caches help from the second epoch on."""
        return max(self.job.workload.epochs, 2.0)

    def time(self, nodes: int, staging: Staging) -> InputTime:
        """Time to read a step's samples on a number of nodes."""
        samples = self.job.workload.global_batch * nodes / self.job.nodes
        step = self.job.machine, nodes, self.ranks_per_node, samples, self.step_s
        return input_time(*step, self.dataset, self.loader.replaced(staging=staging), self.epochs)

    @property
    def now(self) -> InputTime:
        """Time on the job's nodes with the loader's present settings."""
        return self.time(self.job.nodes, self.loader.staging)

    def changes(self) -> list[Change]:
        """Try other settings on the job's nodes, highest utilisation first."""
        job, batch = self.job, self.job.workload.global_batch
        step = job.machine, job.nodes, self.ranks_per_node, batch, self.step_s
        tried = changes(*step, self.dataset, self.loader, self.epochs)
        return sorted(tried, key=lambda change: -float(change.time.utilisation))

    def row(self, nodes: int, staging: Staging) -> Row:
        """Return the table row of one node count and staging."""
        time = self.time(nodes, staging)
        slowest = str(time.bound)
        return {
            "nodes": nodes,
            "staging": staging,
            "utilisation": float(time.utilisation),
            "step_time_s": self.step_s,
            "delivery_s": float(time.delivery_s),
            "waits_s": float(time.exposed_s),
            "first_epoch_waits_s": float(time.first_epoch_exposed_s),
            "staging_s": float(time.staging_s),
            "kept": float(time.cached),
            "reason": f"{slowest} {format_seconds(float(time.stages[slowest]))}",
        }


@question
def data(
    job: JobSpec,
    *,
    nodes: int = 1,
    dataset: str = "megatron-tokens",
    dataset_samples: float | None = None,
    step_seconds: float | None = None,
    workers: int = 4,
    prefetch: int = 2,
    staging: Literal["none", "local-disk", "memory"] = "none",
    sharded: bool = False,
    stripe_count: int = 1,
    file_system: str = "",
    most_nodes: int | None = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Show how long steps wait for data on doublings of the nodes, from file system, disk, memory.

    The batch is the workload's on the nodes of the job; other node counts keep the batch per node
    and the step time. Utilisation is defined as in DLIO and MLPerf Storage: computing time over
    total time, after the first epoch. The reason is the slowest stage.
    """
    job = job.replaced(nodes=nodes)
    loader = Loader(
        workers=workers,
        prefetch=prefetch,
        staging=staging,
        sharded=sharded,
        stripe_count=stripe_count,
        file_system=file_system,
    )
    description = load_dataset(dataset)
    if dataset_samples is not None:
        samples = {"value": dataset_samples, "kind": "assumed", "source": "set by the user"}
        description = description.replaced(num_samples=samples)
    description = description.of_sequences(job.workload.sequence_length)
    ranks = float(job.machine.node.num_devices)
    if step_seconds is None:
        best = plan_point(job).recommended()[1]
        # ranks of a tensor, pipeline or context group share the samples that one of them reads
        ranks = max(ranks / (best.layout.tp * best.layout.pp * best.layout.cp), 1.0)
        step_seconds = best.step_time_s
    reading = _Input(job, step_seconds, ranks, description, loader)
    limit = int(job.machine.num_nodes.value)
    counts = doublings(range(1, min(most_nodes or limit, limit) + 1))
    # staging to local disk is useful only if the dataset is on another file system
    has_disk = job.machine.node.local_disk and job.machine.file_system(file_system)
    places: list[Staging] = ["none", "local-disk", "memory"] if has_disk else ["none", "memory"]
    return Findings(
        _delivery_verdict(reading),
        [reading.row(count, place) for count in counts for place in places],
        notes=[*_data_notes(reading)],
    )


def _delivery_verdict(reading: _Input) -> str:
    """Compare the delivery time of a step's data with its compute time; name the best change."""
    job, now, loader = reading.job, reading.now, reading.loader
    system = job.machine.file_system(loader.file_system)
    source = {
        "none": f"file system {system.name}" if system else "local disks",
        "local-disk": "local disks",
        "memory": "memory after the first epoch",
    }[loader.staging]
    size = format_bytes(job.workload.global_batch * reading.dataset.sample_bytes.value)
    delivery_s, wait = float(now.delivery_s), format_seconds(float(now.exposed_s))
    sentence = (
        f"{job.model.name} reads {reading.dataset.name} from {source} on "
        f"{counted(job.nodes, 'node')} of {job.machine.name}: the {size} of a step arrive in "
        f"{format_seconds(delivery_s)} ({now.bound}), computing takes "
        f"{format_seconds(reading.step_s)}"
    )
    if delivery_s <= reading.step_s and loader.workers and loader.prefetch:
        factor = reading.step_s / delivery_s
        return (
            f"{sentence}: reading is {factor:,.{0 if factor >= 10 else 1}f} times as fast, a step "
            f"waits {wait} to fetch them, {_utilisation(now)}."
        )
    sentence += f", a step waits {wait}: {_utilisation(now)}"
    best = next(iter(reading.changes()), None)
    if best is None or best.time.utilisation < float(now.utilisation) + _LEAST_GAIN:
        return f"{sentence}; none of the changes that were tried helps."
    share = f"{100 * float(best.time.utilisation):.1f} %"
    return f"{sentence}; {_change_phrase(reading, best)} makes it {share}."


def _utilisation(time: InputTime) -> str:
    return f"utilisation {100 * float(time.utilisation):.1f} %"


def _change_phrase(reading: _Input, change: Change) -> str:
    loader, packed = change.loader, change.dataset.samples_per_file.value
    return {
        "workers": f"giving a rank {loader.workers} workers instead of {reading.loader.workers}",
        "prefetch": f"letting {counted(loader.workers, 'worker')} prefetch {loader.prefetch} "
        "batches",
        "decoded": "storing samples decoded (augmentation not counted)",
        "larger files": f"packing {packed:,.0f} samples into a file",
        "stripes": f"striping files over {loader.stripe_count} targets",
        "shards": "keeping a part of the dataset in every node's "
        + {"none": "", "local-disk": "disk", "memory": "memory"}[loader.staging],
        "local disk": "copying the dataset to the local disks first",
        "memory": "leaving it to the page cache",
    }[change.name]


def _data_notes(reading: _Input) -> Iterator[str]:
    """Yield the changes that help, best first, and what is not counted."""
    now, dataset = reading.now, reading.dataset
    for change in reading.changes():
        if float(change.time.utilisation - now.utilisation) >= _LEAST_GAIN:
            copy_s = float(change.time.staging_s)
            once = f"; the copy takes {format_seconds(copy_s)} once" if copy_s else ""
            yield (
                f"Helps: {_change_phrase(reading, change)}, {_utilisation(change.time)} instead of "
                f"{100 * float(now.utilisation):.1f} %, then limited by {change.time.bound}{once}."
            )
    step = format_seconds(reading.step_s)
    yield f"Other node counts keep the batch per node and the step time of {step}."
    if now.unknown:
        yield _unknown_rates(reading, now)
    uneven = ""
    if dataset.spread_bytes and dataset.spread_bytes.value:
        percent = 100 * dataset.spread_bytes.value / dataset.sample_bytes.value
        uneven = f", ranks that wait for larger samples ({percent:.0f} % spread)"
    yield (
        "MLPerf Storage measured utilisations 4 points below these estimates on average, 11 at "
        "most."
    )
    yield f"Not counted: other jobs on the file system, gradients on the same interfaces{uneven}."


def _unknown_rates(reading: _Input, now: InputTime) -> str:
    """Name the stages whose rate the machine does not state, and the setting for the first."""
    machine = reading.job.machine
    system = machine.file_system(reading.loader.file_system)
    stages = f"Not counted, because {machine.name} states no rate: {', '.join(now.unknown)}"
    if system is None:
        return f"{stages}."
    field = {
        "file system": "bytes_per_s=100GB/s",
        "storage targets": "num_targets=100",
        "metadata": "opens_per_s=30000",
    }[now.unknown[0]]
    setting = f"file_systems.{machine.file_systems.index(system)}.{field}"
    return f"{stages} (file system {system.name}; state one, such as {setting})."
