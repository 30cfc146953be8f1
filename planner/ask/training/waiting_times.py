"""Waiting times: the start-up of a job, part by part, and input data of its steps."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, plan_point
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import count_range, doublings, scan
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.shards.layouts import Layouts
from planner.describe.base import assumed
from planner.describe.catalogue import load_dataset
from planner.describe.files import read_toml
from planner.describe.training import training_run
from planner.training.data import Change, InputTime, changes, input_time
from planner.training.data.input import benchmark_dataset, fill_epochs
from planner.training.resilience.start import START_PARTS, constants, start_up
from planner.units import counted, format_bytes, format_seconds

_LEAST_GAIN = 0.005
"""Smallest gain of utilisation that counts as a help."""
_PHRASES = read_toml(Path(__file__).with_name("loader_changes.toml"))
_ENDLESS = 1e9
"""Epochs after which caches are full."""


@question
def startup(
    job: JobSpec,
    *,
    nodes: int = 1,
    most_nodes: int | None = None,
    environment: training_run.Environment = "file-system",
    loading: training_run.Loading = "none",
    compile_s: float = 0.0,
    data_index_s: float = 0.0,
    warm_up_s: float = 0.0,
    **_: Unpack[JobFields],
) -> Findings:
    """Show the start-up time of a job on doublings of the nodes, for the recommended layouts.

    Parts run one after another: launch, imports, communicators, the model, its weights, the
    dataset's index, compilation, slower first steps. Parts that depend on the machine and the ranks
    are modelled; the others take the time that the options state.
    """
    start = training_run.StartUp(
        environment=environment,
        loading=loading,
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
        f"{format_seconds(row['start_s'])} on {counted(row['nodes'], 'node')} ({row['reason']}; "
        f"{format_seconds(row['after_imports_s'])} after imports)"
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
            "Not counted: waiting in the queue, modules, staging before the launch, evaluation "
            "before the first step, groups at whose creation all ranks wait.",
            "A program that times its own start begins after its imports. Imports are those of a "
            "first run, as measured on 8 nodes of Frontier; they take "
            f"{format_seconds(constants().import_s.value)} where the nodes have the files in "
            "memory, as in a second run, or on their disks, brought there as one file (sbcast, a "
            "container, a squashed image).",
            "Compilation, the dataset's index and slower first steps are as long as stated.",
        ],
        success=bool(fitting),
    )


def _start_parts(point: PlanPoint, start: training_run.StartUp) -> dict[str, float]:
    scenario, best = point.recommended()
    parts = start_up(scenario, Layouts.of(best.layout), start)
    return {name: float(seconds) for name, seconds in parts.items()}


def _start_row(point: PlanPoint, start: training_run.StartUp) -> Row:
    if point.best is None:
        return point.row()
    parts = _start_parts(point, start)
    total, largest = sum(parts.values()), max(parts, key=lambda name: parts[name])
    return {
        **point.columns,
        "framework": point.best.framework,
        "layout": str(point.best.layout),
        "start_s": total,
        "after_imports_s": total - parts["launch"] - parts["imports"],
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        "node_hours": point.nodes * total / 3600,
        "reason": f"{START_PARTS[largest]} {100 * parts[largest] / total:.0f} %",
    }


@dataclass(frozen=True, slots=True)
class _Input:
    """Input pipeline of a step; other node counts keep the batch per node."""

    job: JobSpec
    step_s: float
    ranks_per_node: float
    stored: training_run.Dataset
    """The dataset as it is, which a step may exceed."""
    keeps_size: bool
    loader: training_run.Loader
    epochs: float

    def samples(self, nodes: int) -> float:
        """Samples of a step on a number of nodes."""
        return self.job.workload.global_batch * nodes / self.job.nodes

    def dataset(self, nodes: int) -> training_run.Dataset:
        """The dataset; if a step exceeds it and its size is not stated, grown to a benchmark's."""
        samples = self.samples(nodes)
        if self.keeps_size or samples <= self.stored.num_samples.value:
            return self.stored
        return benchmark_dataset(self.job.machine, nodes, samples, self.stored)

    def time(self, nodes: int, loader: training_run.Loader, epochs: float) -> InputTime:
        """Time to read a step's samples on a number of nodes, averaged over epochs."""
        step = self.job.machine, nodes, self.ranks_per_node, self.samples(nodes), self.step_s
        return input_time(*step, self.dataset(nodes), loader, epochs)

    @property
    def now(self) -> InputTime:
        """Time on the job's nodes with the loader's present settings."""
        return self.time(self.job.nodes, self.loader, self.epochs)

    def changes(self) -> list[Change]:
        """Try other settings on the job's nodes, highest utilisation first."""
        job, batch = self.job, self.job.workload.global_batch
        step = job.machine, job.nodes, self.ranks_per_node, batch, self.step_s
        tried = changes(*step, self.dataset(job.nodes), self.loader, self.epochs)
        return sorted(tried, key=lambda change: -float(change.time.utilisation))

    def row(self, nodes: int, staging: training_run.Staging, sharded: bool) -> Row:
        """Return the table row of one node count, staging and way of reading."""
        loader = self.loader.replaced(staging=staging, sharded=sharded)
        time, full = (self.time(nodes, loader, epochs) for epochs in (self.epochs, _ENDLESS))
        slowest, fills = str(time.bound), staging == "memory" and not sharded
        return {
            "nodes": nodes,
            "staging": f"{staging}, sharded" if sharded and staging != "none" else staging,
            "utilisation": float(time.utilisation),
            "step_time_s": self.step_s,
            "delivery_s": float(time.delivery_s),
            "waits_s": float(time.exposed_s),
            "first_epoch_waits_s": float(time.first_epoch_exposed_s),
            "staging_s": float(time.staging_s),
            "kept": float(time.cached),
            "fill_epochs": fill_epochs(nodes, 0.9 * float(full.cached)) if fills else None,
            "full_utilisation": float(full.utilisation),
            "dataset_bytes": self.dataset(nodes).total_bytes,
            "reason": f"{slowest} {format_seconds(float(time.stages[slowest]))}",
        }


@question
def data(
    job: JobSpec,
    *,
    nodes: int = 1,
    dataset: str = "megatron-tokens",
    dataset_samples: float | None = None,
    dataset_epochs: int = 2,
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
    loader = training_run.Loader(
        workers=workers,
        prefetch=prefetch,
        staging=staging,
        sharded=sharded,
        stripe_count=stripe_count,
        file_system=file_system,
    )
    description = load_dataset(dataset)
    if dataset_samples is not None:
        samples = assumed(dataset_samples, "set by the user")
        description = description.replaced(num_samples=samples)
    description = description.of_sequences(job.workload.sequence_length)
    ranks = float(job.machine.node.num_devices)
    if step_seconds is None:
        best = plan_point(job).recommended()[1]
        # ranks of a tensor, pipeline or context group share the samples that one of them reads
        ranks = max(ranks / (best.layout.tp * best.layout.pp * best.layout.cp), 1.0)
        step_seconds = best.step_time_s
    epochs = max(job.workload.epochs, dataset_epochs)
    keeps_size = dataset_samples is not None
    reading = _Input(job, step_seconds, ranks, description, keeps_size, loader, epochs)
    limit = int(job.machine.num_nodes.value)
    counts = doublings(range(1, min(most_nodes or limit, limit) + 1))
    # staging to local disk is useful only if the dataset is on another file system
    has_disk = job.machine.node.local_disk and job.machine.file_system(file_system)
    places: list[training_run.Staging] = (
        ["none", "local-disk", "memory"] if has_disk else ["none", "memory"]
    )
    ways = [(place, sharded) for place in places] + [("memory", True)] * (not sharded)
    return Findings(
        _delivery_verdict(reading),
        [reading.row(count, *way) for count in counts for way in ways],
        notes=[*_data_notes(reading, counts)],
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
    stored, samples = reading.stored, job.workload.global_batch
    size = f"{format_bytes(samples * stored.sample_bytes.value)} of a step"
    if samples > stored.num_samples.value:
        size += f" (more than the {format_bytes(stored.total_bytes)} of the dataset)"
    delivery_s, wait = float(now.delivery_s), format_seconds(float(now.exposed_s))
    sentence = (
        f"{job.model.name} reads {stored.name} from {source} on "
        f"{counted(job.nodes, 'node')} of {job.machine.name}: the {size} arrive in "
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
    return _PHRASES[change.name].format(
        now=reading.loader,
        then=loader,
        packed=packed,
        workers=counted(loader.workers, "worker"),
        place=loader.staging.removeprefix("local-"),
    )


def _data_notes(reading: _Input, counts: list[int]) -> Iterator[str]:
    """Yield the changes that help, best first, and what is not counted."""
    now, dataset = reading.now, reading.stored
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
    grown = [count for count in counts if reading.dataset(count) is not dataset]
    if grown:
        yield (
            f"From {counted(grown[0], 'node')} on a step takes more samples than {dataset.name} "
            "has: the dataset is grown there by the rule of MLPerf Storage, 500 steps an epoch and "
            "5 times the memory of the nodes; state the samples of an epoch for another size."
        )
    yield (
        "Of a shuffled dataset a node reads other samples in each epoch: its page cache fills over "
        "epochs, to 90 % of what fits in those listed. Sharded, a node keeps its own part."
    )


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
