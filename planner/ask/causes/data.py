"""Data: how long steps wait for what they read, on how many nodes, from where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Unpack

from planner.ask.answer import Answer, Row
from planner.ask.asked import Asked, JobFields, asked_of
from planner.ask.fewest import doublings
from planner.ask.option import Nodes, Option, checked
from planner.ask.point import Point, on_nodes
from planner.ask.resources.nodes import MostNodes
from planner.choose.job_checks import check_nodes
from planner.describe.catalogue import load_dataset
from planner.describe.dataset import Dataset, Loader, Staging
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.training.data import Change, InputTime, changes, input_time
from planner.units import counted, format_bytes, format_seconds

__all__ = ["data"]

_PLACES = {"none": "", "local-disk": "disk", "memory": "memory"}
_HELPS = 0.005
# a utilisation that is higher by less than half a percent is no help


@dataclass(frozen=True, slots=True)
class _Read:
    """What is read in a step on some nodes."""

    asked: Asked
    nodes: int
    step_s: float
    ranks_per_node: float
    dataset: Dataset
    loader: Loader
    epochs: float

    def samples(self, nodes: int) -> float:
        """Samples of a step: those of a node stay."""
        return self.asked.workload.global_batch * nodes / self.nodes

    def on(self, nodes: int, staging: Staging) -> InputTime:
        """What the samples of a step take on some nodes."""
        job = self.asked.machine, nodes, self.ranks_per_node, self.samples(nodes), self.step_s
        return input_time(*job, self.dataset, self.loader.replaced(staging=staging), self.epochs)

    def changes(self) -> list[Change]:
        """What could be done otherwise on the nodes that are asked about."""
        batch = self.samples(self.nodes)
        job = self.asked.machine, self.nodes, self.ranks_per_node, batch, self.step_s
        return changes(*job, self.dataset, self.loader, self.epochs)


@checked
def data(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: Nodes = 1,
    dataset: Annotated[
        str, Option("What is read: a dataset's name or TOML path.", metavar="NAME")
    ] = "megatron-tokens",
    dataset_samples: Annotated[
        float | None, Option("Samples of an epoch, instead of the dataset's own.", above=0)
    ] = None,
    step_seconds: Annotated[
        float | None,
        Option("Time of a step without waits; the plan's where none is given.", above=0),
    ] = None,
    workers: Annotated[
        int, Option("Workers of every rank that read and decode.", least=0, most=1024)
    ] = 4,
    prefetch: Annotated[
        int, Option("Batches that a worker has ready beforehand.", least=0, most=10_000)
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
        str, Option("Shared file system that it lies on; the machine's first where none is given.")
    ] = "",
    most_nodes: MostNodes = None,
    **job: Unpack[JobFields],
) -> Answer:
    """What steps wait for their data on more and more nodes, from file system, disk and memory.

    The batch is that of the workload on the nodes asked about; on other nodes the batch of a node
    and the time of a step stay. Utilisation is that of DLIO and MLPerf Storage: computing time over
    all time, after the first epoch. `reason` is the slowest stage.

    >>> import planner
    >>> job = planner.Workload(sequence_length=1024, global_batch=64)
    >>> answer = planner.ask.data("gpt2", "polaris", workload=job, most_nodes=1)
    >>> answer.rows[0]["utilisation"] > 0.99
    True
    """
    asked = asked_of(model, machine, job)
    check_nodes(asked.machine, nodes)
    loader = Loader(
        workers=workers,
        prefetch=prefetch,
        staging=staging,
        sharded=sharded,
        stripe_count=stripe_count,
        file_system=file_system,
    )
    read = _read(asked, nodes, step_seconds, _sized(dataset, dataset_samples, asked), loader)
    own: dict[str, Any] = {
        "nodes": nodes,
        "dataset": dataset,
        "dataset_samples": dataset_samples,
        "step_seconds": step_seconds,
        "workers": workers,
        "prefetch": prefetch,
        "staging": staging,
        "sharded": sharded,
        "stripe_count": stripe_count,
        "file_system": file_system,
        "most_nodes": most_nodes,
    }
    if isinstance(read, Point):
        return asked.answer(
            "data",
            f"Nothing fits on {on_nodes(read)}: {read.reason}.",
            [read.row()],
            found=False,
            **own,
        )
    rows = [_row(read, n, kept) for n in _counts(asked, most_nodes) for kept in _kept(read)]
    return asked.answer("data", _verdict(read), rows, notes=_notes(read), **own)


def _sized(name: str, samples: float | None, asked: Asked) -> Dataset:
    """The dataset, of the size asked for, in the workload's sequences."""
    found = load_dataset(name)
    if samples is not None:
        said = {"value": samples, "kind": "assumed", "source": "set by the user"}
        found = found.replaced(num_samples=said)
    return found.of_sequences(asked.workload.sequence_length)


def _read(
    asked: Asked, nodes: int, step_s: float | None, dataset: Dataset, loader: Loader
) -> _Read | Point:
    """What is read in a step; the point where nothing fits."""
    ranks = float(asked.per_node)
    if step_s is None:
        point = asked.on(nodes)
        if point.best is None:
            return point
        # ranks of a group of tensor, pipeline or context parallelism share what one of them reads
        layout, step_s = point.best.layout, point.best.step_time_s
        ranks = max(asked.per_node / (layout.tp * layout.pp * layout.cp), 1.0)
    return _Read(asked, nodes, step_s, ranks, dataset, loader, max(asked.workload.epochs, 2.0))


def _counts(asked: Asked, most: int | None) -> list[int]:
    """Numbers of nodes of the table."""
    limit = int(asked.machine.num_nodes.value)
    return doublings(range(1, min(most or limit, limit) + 1))


def _kept(read: _Read) -> list[Staging]:
    """What nodes can keep: on a disk that is there, and that the dataset does not lie on anyway."""
    shared = read.asked.machine.file_system(read.loader.file_system)
    disk = read.asked.machine.node.local_disk and shared
    return ["none", "local-disk", "memory"] if disk else ["none", "memory"]


def _source(read: _Read) -> str:
    """Where the samples come from, in words."""
    system = read.asked.machine.file_system(read.loader.file_system)
    return {
        "none": f"file system {system.name}" if system else "local disks",
        "local-disk": "local disks",
        "memory": "memory after the first epoch",
    }[read.loader.staging]


def _row(read: _Read, nodes: int, staging: Staging) -> Row:
    found = read.on(nodes, staging)
    return {
        "nodes": nodes,
        "staging": staging,
        "utilisation": float(found.utilisation),
        "step_time_s": read.step_s,
        "delivery_s": float(found.delivery_s),
        "waits_s": float(found.exposed_s),
        "first_epoch_waits_s": float(found.first_epoch_exposed_s),
        "staging_s": float(found.staging_s),
        "kept": float(found.kept),
        "reason": _slowest(found),
    }


def _slowest(found: InputTime) -> str:
    """The slowest stage with its time."""
    name = str(found.bound)
    return f"{name} {format_seconds(float(found.stages[name]))}"


def _verdict(read: _Read) -> str:
    found = read.on(read.nodes, read.loader.staging)
    size = format_bytes(read.samples(read.nodes) * read.dataset.sample_bytes.value)
    arrives = float(found.delivery_s)
    said = (
        f"{read.asked.model.name} reads {read.dataset.name} from {_source(read)} on "
        f"{counted(read.nodes, 'node')} of {read.asked.machine.name}: {size} a step arrive in "
        f"{format_seconds(arrives)} ({found.bound}), a step computes for "
        f"{format_seconds(read.step_s)}"
    )
    used = f"utilisation {100 * float(found.utilisation):.1f} %"
    if arrives <= read.step_s and read.loader.workers and read.loader.prefetch:
        times = read.step_s / arrives
        fast = f"{times:,.0f}" if times >= 10 else f"{times:.1f}"
        handed = format_seconds(float(found.exposed_s))
        return (
            f"{said}: data are {fast} times as fast, a step waits {handed} to fetch them, {used}."
        )
    waits = f"{said}, waits {format_seconds(float(found.exposed_s))}: {used}"
    best = max(read.changes(), key=lambda one: float(one.found.utilisation), default=None)
    if best is None or float(best.found.utilisation) < float(found.utilisation) + _HELPS:
        return f"{waits}, and nothing that was tried helps."
    return f"{waits}; {_done(read, best)} makes it {100 * float(best.found.utilisation):.1f} %."


def _done(read: _Read, change: Change) -> str:
    """A change in words."""
    way, packed = change.loader, change.dataset.samples_per_file.value
    return {
        "workers": f"giving a rank {way.workers} workers instead of {read.loader.workers}",
        "prefetch": f"letting {counted(way.workers, 'worker')} have {way.prefetch} batches ready",
        "decoded": "storing samples decoded (augmentation not counted)",
        "larger files": f"packing {packed:,.0f} samples into a file",
        "stripes": f"striping files over {way.stripe_count} targets",
        "shards": f"keeping its own part of the dataset in every node's {_PLACES[way.staging]}",
        "local disk": "copying the dataset to the local disks first",
        "memory": "leaving it to the page cache",
    }[change.name]


def _notes(read: _Read) -> list[str]:
    """What would help, best first, and what is not counted."""
    now = read.on(read.nodes, read.loader.staging)
    found = []
    for one in sorted(read.changes(), key=lambda each: -float(each.found.utilisation)):
        gain = float(one.found.utilisation - now.utilisation)
        if gain < _HELPS:
            continue
        once = float(one.found.staging_s)
        found.append(
            f"Helps: {_done(read, one)}, utilisation {100 * float(one.found.utilisation):.1f} % "
            f"instead of {100 * float(now.utilisation):.1f} %, then held by {one.found.bound}"
            + (f"; the copy takes {format_seconds(once)} once." if once else ".")
        )
    left = [
        f"On other nodes the batch of a node and the step of {format_seconds(read.step_s)} stay."
    ]
    if now.unknown:
        left.append(_unknown(read, now))
    left.append(
        "MLPerf Storage measured utilisations 4 points below such estimates on average, 11 at most."
    )
    spread = read.dataset.spread_bytes
    unlike = 100 * spread.value / read.dataset.sample_bytes.value if spread else 0.0
    left.append(
        "Not counted: other jobs on the file system, gradients on the same interfaces"
        + (
            f", ranks that wait for samples larger than others (by {unlike:.0f} %)."
            if unlike
            else "."
        )
    )
    return [*found, *left]


def _unknown(read: _Read, now: InputTime) -> str:
    """What no rate is known of, and how to state one."""
    machine = read.asked.machine
    system = machine.file_system(read.loader.file_system)
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
