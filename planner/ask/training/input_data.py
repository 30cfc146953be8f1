"""Input data: how long steps wait for what they read, on how many nodes, from where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Unpack

from planner.ask.answer import Row
from planner.ask.option import MostNodes, Nodes, Option
from planner.ask.plan_point import recommended_layout
from planner.ask.question import Findings, JobFields, question
from planner.ask.rules import doublings
from planner.choose.jobs.job_spec import JobSpec
from planner.describe.catalogue import load_dataset
from planner.describe.training.training_run import Dataset, Loader, Staging
from planner.training.data import Change, InputTime, changes, input_time
from planner.units import counted, format_bytes, format_seconds

__all__ = ["data"]

_STAGING_PLACES = {"none": "", "local-disk": "disk", "memory": "memory"}
_LEAST_GAIN = 0.005
"""Gain of utilisation below which a change is no help."""


@dataclass(frozen=True, slots=True)
class _Input:
    """The input of a step on some nodes; on other node counts the batch of a node stays."""

    job: JobSpec
    step_s: float
    ranks_per_node: float
    dataset: Dataset
    loader: Loader

    @property
    def epochs(self) -> float:
        """Epochs; two at least, as caches help from the second on."""
        return max(self.job.workload.epochs, 2.0)

    def time(self, nodes: int, staging: Staging) -> InputTime:
        """Time to read a step's samples on some nodes."""
        samples = self.job.workload.global_batch * nodes / self.job.nodes
        step = self.job.machine, nodes, self.ranks_per_node, samples, self.step_s
        return input_time(*step, self.dataset, self.loader.replaced(staging=staging), self.epochs)

    @property
    def now(self) -> InputTime:
        """The time on the job's nodes with the loader as it is."""
        return self.time(self.job.nodes, self.loader.staging)

    def changes(self) -> list[Change]:
        """Other settings on the job's nodes, most utilisation first."""
        job, batch = self.job, self.job.workload.global_batch
        step = job.machine, job.nodes, self.ranks_per_node, batch, self.step_s
        tried = changes(*step, self.dataset, self.loader, self.epochs)
        return sorted(tried, key=lambda change: -float(change.time.utilisation))

    @property
    def source(self) -> str:
        """Where samples come from, for a sentence."""
        system = self.job.machine.file_system(self.loader.file_system)
        return {
            "none": f"file system {system.name}" if system else "local disks",
            "local-disk": "local disks",
            "memory": "memory after the first epoch",
        }[self.loader.staging]


@question
def data(
    job: JobSpec,
    *,
    nodes: Nodes = 1,
    dataset: Annotated[
        str, Option("Dataset that is read: its name or TOML file.", metavar="NAME")
    ] = "megatron-tokens",
    dataset_samples: Annotated[
        float | None, Option("Samples of an epoch, instead of the dataset's own.", above=0)
    ] = None,
    step_seconds: Annotated[
        float | None, Option("Time of a step without waits; the plan's by default.", above=0)
    ] = None,
    workers: Annotated[
        int, Option("Workers of every rank that read and decode.", least=0, most=1024)
    ] = 4,
    prefetch: Annotated[
        int, Option("Batches that a worker prepares ahead.", least=0, most=10_000)
    ] = 2,
    staging: Annotated[
        Literal["none", "local-disk", "memory"],
        Option("What a node keeps: nothing, the dataset on its disk, or what it read in memory."),
    ] = "none",
    sharded: Annotated[
        bool, Option("A node reads the same part of the dataset in every epoch.")
    ] = False,
    stripe_count: Annotated[
        int, Option("Storage targets that a file is spread over.", least=1, most=100_000)
    ] = 1,
    file_system: Annotated[
        str, Option("Shared file system that holds it; the machine's first by default.")
    ] = "",
    most_nodes: MostNodes = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Show how long steps wait for data on more and more nodes, from file system, disk and memory.

    The batch is the workload's on the nodes of the job; on other node counts the batch of a node
    and the time of a step stay. Utilisation is that of DLIO and MLPerf Storage: computing time over
    all time, after the first epoch. `reason` is the slowest stage.
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
        _scenario, best = recommended_layout(job)
        # ranks of a tensor, pipeline or context group share what one of them reads
        ranks = max(ranks / (best.layout.tp * best.layout.pp * best.layout.cp), 1.0)
        step_seconds = best.step_time_s
    reading = _Input(job, step_seconds, ranks, description, loader)
    limit = int(job.machine.num_nodes.value)
    counts = doublings(range(1, min(most_nodes or limit, limit) + 1))
    return Findings(
        _verdict(reading),
        [_row(reading, count, place) for count in counts for place in _staging_places(reading)],
        notes=_notes(reading),
    )


def _staging_places(reading: _Input) -> list[Staging]:
    """What nodes can keep; a copy on disk only where the dataset lies elsewhere."""
    shared = reading.job.machine.file_system(reading.loader.file_system)
    disk = reading.job.machine.node.local_disk and shared
    return ["none", "local-disk", "memory"] if disk else ["none", "memory"]


def _row(reading: _Input, nodes: int, staging: Staging) -> Row:
    time = reading.time(nodes, staging)
    slowest = str(time.bound)
    return {
        "nodes": nodes,
        "staging": staging,
        "utilisation": float(time.utilisation),
        "step_time_s": reading.step_s,
        "delivery_s": float(time.delivery_s),
        "waits_s": float(time.exposed_s),
        "first_epoch_waits_s": float(time.first_epoch_exposed_s),
        "staging_s": float(time.staging_s),
        "kept": float(time.cached),
        "reason": f"{slowest} {format_seconds(float(time.stages[slowest]))}",
    }


def _verdict(reading: _Input) -> str:
    job, now, loader = reading.job, reading.now, reading.loader
    size = format_bytes(job.workload.global_batch * reading.dataset.sample_bytes.value)
    delivery_s, wait_s = float(now.delivery_s), float(now.exposed_s)
    sentence = (
        f"{job.model.name} reads {reading.dataset.name} from {reading.source} on "
        f"{counted(job.nodes, 'node')} of {job.machine.name}: the {size} of a step arrive in "
        f"{format_seconds(delivery_s)} ({now.bound}), computing takes "
        f"{format_seconds(reading.step_s)}"
    )
    utilisation = f"utilisation {100 * float(now.utilisation):.1f} %"
    if delivery_s <= reading.step_s and loader.workers and loader.prefetch:
        factor = reading.step_s / delivery_s
        return (
            f"{sentence}: reading is {factor:,.{0 if factor >= 10 else 1}f} times as fast, a step "
            f"waits {format_seconds(wait_s)} to fetch them, {utilisation}."
        )
    sentence += f", a step waits {format_seconds(wait_s)}: {utilisation}"
    best = next(iter(reading.changes()), None)
    if best is None or best.time.utilisation < float(now.utilisation) + _LEAST_GAIN:
        return f"{sentence}; none of the changes that were tried helps."
    return (
        f"{sentence}; {_in_words(reading, best)} makes it "
        f"{100 * float(best.time.utilisation):.1f} %."
    )


def _in_words(reading: _Input, change: Change) -> str:
    """A change of the input pipeline, for a sentence."""
    loader, packed = change.loader, change.dataset.samples_per_file.value
    return {
        "workers": f"giving a rank {loader.workers} workers instead of {reading.loader.workers}",
        "prefetch": f"letting {counted(loader.workers, 'worker')} prefetch {loader.prefetch} "
        "batches",
        "decoded": "storing samples decoded (augmentation not counted)",
        "larger files": f"packing {packed:,.0f} samples into a file",
        "stripes": f"striping files over {loader.stripe_count} targets",
        "shards": "keeping a part of the dataset in every node's "
        + _STAGING_PLACES[loader.staging],
        "local disk": "copying the dataset to the local disks first",
        "memory": "leaving it to the page cache",
    }[change.name]


def _notes(reading: _Input) -> list[str]:
    """Changes that help, best first, and what is not counted."""
    now = reading.now
    lines = []
    for change in reading.changes():
        if float(change.time.utilisation - now.utilisation) < _LEAST_GAIN:
            continue
        copy_s = float(change.time.staging_s)
        lines.append(
            f"Helps: {_in_words(reading, change)}, utilisation "
            f"{100 * float(change.time.utilisation):.1f} % instead of "
            f"{100 * float(now.utilisation):.1f} %, then limited by {change.time.bound}"
            + (f"; the copy takes {format_seconds(copy_s)} once." if copy_s else ".")
        )
    lines.append(
        f"On other nodes the batch of a node and the step of {format_seconds(reading.step_s)} stay."
    )
    if now.unknown:
        lines.append(_unknown_rates(reading, now))
    spread = reading.dataset.spread_bytes
    percent = 100 * spread.value / reading.dataset.sample_bytes.value if spread else 0.0
    uneven = f", ranks that wait for larger samples ({percent:.0f} % spread)" if percent else ""
    return [
        *lines,
        "MLPerf Storage measured utilisations 4 points below these estimates on average, 11 at "
        "most.",
        f"Not counted: other jobs on the file system, gradients on the same interfaces{uneven}.",
    ]


def _unknown_rates(reading: _Input, now: InputTime) -> str:
    """Name the stages whose rate the machine does not state, and the setting that states one."""
    machine = reading.job.machine
    system = machine.file_system(reading.loader.file_system)
    stages = f"Not counted, because {machine.name} states no rate of it: {', '.join(now.unknown)}"
    if system is None:
        return f"{stages}."
    field = {
        "file system": "bytes_per_s=100GB/s",
        "storage targets": "num_targets=100",
        "metadata": "opens_per_s=30000",
    }[now.unknown[0]]
    setting = f"file_systems.{machine.file_systems.index(system)}.{field}"
    return f"{stages} (file system {system.name}; state one, such as --set {setting})."
