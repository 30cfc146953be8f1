"""Checkpoint cost: size and time of checkpoints, the save interval, and the cost of failures."""

from collections.abc import Iterator
from typing import NamedTuple, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, plan_point
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import count_range, doublings, scan
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.training.training_run import Checkpoints, Failures
from planner.training.resilience.checkpoints import (
    Checkpoint,
    checkpoint_of,
    constants,
    nodes_of,
    saved_bytes,
    transfer_bounds_s,
)
from planner.training.resilience.failures import (
    detection_s,
    mean_time_between_failures_s,
    training_losses,
)
from planner.training.resilience.start import restart_s
from planner.training.steps import training_time
from planner.units import counted, format_bytes, format_rate, format_seconds

_MONTH_S = 30 * 86400.0
"""Training time if the workload states no tokens; the shares hardly depend on it."""
_FILE_SYSTEMS = 2
"""Number of file systems to compare: the fastest ones."""
_NOTES = (
    "To resume exactly, a checkpoint also holds the step, the schedule, the random states and "
    "the position of the data loader, with the epoch that seeds a DistributedSampler; else "
    "samples repeat. These are small and not counted.",
    "Not counted: other jobs on the file system, metadata, stripes, opening many files.",
)


class _Saving(NamedTuple):
    """A way to save checkpoints, and its cost."""

    settings: Checkpoints
    saved: Checkpoint
    row: Row


@question
def checkpoints(
    job: JobSpec,
    *,
    nodes: int = 1,
    most_nodes: int | None = None,
    interval_minutes: float | None = None,
    device_mtbf_hours: float | None = None,
    detection_minutes: float = 10.0,
    share: float = 100.0,
    **_: Unpack[JobFields],
) -> Findings:
    """Show the size of a checkpoint, how long steps wait for it, how often to save, and losses.

    Uses the recommended layout. Compares synchronous and asynchronous saves to the fastest shared
    file systems, saves to node-local disks drained to the file system, and one rank gathering all.
    Without a stated interval, the one that loses the least time by Daly's formula is used. With
    a largest node count, doublings of the nodes are planned, too.
    """
    failure_rate = None if device_mtbf_hours is None else 1 / device_mtbf_hours
    failures = Failures(per_device_hour=failure_rate, detection_s=60 * detection_minutes)
    interval_s = None if interval_minutes is None else 60 * interval_minutes
    points = scan(job, "nodes")
    if most_nodes in (None, nodes):
        points.points[nodes] = plan_point(job.replaced(nodes=nodes))
    else:
        points.plan_all(doublings(count_range(job, nodes, most_nodes)))
    savings = {
        point.nodes: [*_savings(point, failures, interval_s, share / 100)]
        for point in points.fitting()
    }
    last, first = points[max(points.points)], next(iter(savings), None)
    verdict, advice = f"{job.model.name} does not fit on {last.place}: {last.reason}.", []
    if first is not None:
        verdict = _size_and_interval(points[first], savings[first], interval_s)
        advice = [*_advice(points[first], savings[first], failures)]
    source = "as stated"
    if device_mtbf_hours is None:
        source = "from Llama 3 405B, 419 interruptions in 54 days on 16,384 H100"
    return Findings(
        verdict,
        [
            row
            for count, point in points.by_value()
            for row in ([each.row for each in savings[count]] if point.fits else [point.row()])
        ],
        notes=[
            *advice,
            f"Failures come at a constant rate per device, {source}; a restart takes "
            f"{format_seconds(detection_s(failures))} until the failure is noticed, and a start "
            "that reads the checkpoint.",
            *_NOTES,
        ],
        success=first is not None,
    )


def _savings(
    point: PlanPoint, failures: Failures, interval_s: float | None, share: float
) -> Iterator[_Saving]:
    scenario, best = point.recommended()
    layouts = Layouts.of(best.layout)
    weights = saved_bytes(scenario, layouts, "weights")["weights"]
    mtbf_s = float(mean_time_between_failures_s(point.devices, failures))
    work_s = training_time(point.workload, best) or _MONTH_S
    for name, settings in _settings(scenario, layouts, share):
        saved = checkpoint_of(scenario, layouts, settings)
        again_s = restart_s(scenario, layouts, failures=failures, checkpoints=settings)
        losses = training_losses(
            work_s, saved.blocking_s, mtbf_s, again_s, interval_s, saved.behind_s
        )
        row = {
            **point.columns,
            "way": name,
            "framework": best.framework,
            "layout": str(best.layout),
            "checkpoint_bytes": float(saved.total_bytes),
            "weights_alone_bytes": float(weights),
            "files": int(saved.files),
            "wait_s": float(saved.blocking_s),
            "behind_s": float(saved.behind_s),
            "mtbf_s": mtbf_s,
            "restart_s": float(again_s),
            "interval_s": float(losses.interval_s),
            "saving_share": float(losses.checkpoints_s / losses.total_s),
            "lost_share": float(losses.lost_s / losses.total_s),
            "restarts_share": float(losses.restarts_s / losses.total_s),
            "useful_share": float(losses.fraction),
            "reason": _bottleneck(scenario, layouts, settings, saved),
        }
        yield _Saving(settings, saved, row)


def _settings(
    scenario: Scenario, layouts: Layouts, share: float
) -> Iterator[tuple[str, Checkpoints]]:
    machine = scenario.machine
    rates = {s.name: s.bytes_per_s.value for s in machine.file_systems if s.bytes_per_s is not None}
    fastest = sorted(rates, key=lambda name: -rates[name])[:_FILE_SYSTEMS] or [""]
    for name in fastest:
        settings = Checkpoints(file_system=name, share=share)
        yield name or "files", settings
        yield f"{name or 'files'}, asynchronous", settings.replaced(asynchronous=True)
    first = Checkpoints(file_system=fastest[0], share=share)
    first_name = fastest[0] or "files"
    if machine.node.local_disk is not None:
        yield f"local disks, then {first_name}", first.replaced(storage="local-disk")
    if layouts.world > 1 and checkpoint_of(scenario, layouts).writers > 1:
        yield f"{first_name}, gathered on one rank", first.replaced(full=True)


def _bottleneck(
    scenario: Scenario, layouts: Layouts, settings: Checkpoints, saved: Checkpoint
) -> str:
    machine, rate = scenario.machine, constants().writer_bytes_per_s.value
    nodes = min(float(nodes_of(machine, layouts)), float(saved.writers))
    limits = transfer_bounds_s(
        machine, settings, saved.total_bytes, saved.most_bytes, nodes, process_bytes_per_s=rate
    )
    slowest = max(limits, key=lambda name: float(limits[name]))
    system = machine.file_system(settings.file_system)
    words = {
        "process": f"a process writes {format_rate(rate)}",
        "interfaces": f"nodes' interfaces, {format_rate(machine.node_bytes_per_s)} each",
        "file_system": f"{system.name if system else 'file system'} as a whole",
    }
    if settings.asynchronous:
        return f"waits for the copy to the host; then {words[slowest]}"
    disk = machine.node.local_disk
    if settings.storage == "local-disk" and disk is not None:
        disk_s = float(saved.total_bytes) / nodes / disk.write_bytes_per_s.value
        by_process = f"{words['process']} to its node's disk"
        return "waits for the nodes' disks" if disk_s > float(limits["process"]) else by_process
    return words[slowest]


def _best(savings: list[_Saving]) -> Row:
    """Return the row of the way that loses the least time; ties keep their order."""
    return max((each.row for each in savings), key=lambda row: float(row["useful_share"]))


def _size_and_interval(point: PlanPoint, savings: list[_Saving], interval_s: float | None) -> str:
    scenario, _ = point.recommended()
    first, best = savings[0].row, _best(savings)
    sentence = (
        f"A checkpoint of {scenario.model.name} on {point.place} is "
        f"{format_bytes(first['checkpoint_bytes'])} in {counted(first['files'], 'file')} "
        f"({format_bytes(first['weights_alone_bytes'])} of weights); steps wait "
        f"{format_seconds(first['wait_s'])} for it ({first['way']})"
    )
    if best["way"] != first["way"]:
        sentence += f", {format_seconds(best['wait_s'])} with {best['way']}"
    least = "" if interval_s else ", the interval that loses the least time"
    return (
        f"{sentence}. Saved every {format_seconds(best['interval_s'])}{least}, with a failure "
        f"every {format_seconds(best['mtbf_s'])}, {_percent(best['useful_share'])} of the time is "
        "useful work."
    )


def _percent(share: float) -> str:
    """Format a share with enough digits to differ from 100 %."""
    digits = 1
    while digits < 6 and f"{100 * share:.{digits}f}" == f"{100:.{digits}f}":
        digits += 1
    return f"{100 * share:.{digits}f} %"


def _advice(point: PlanPoint, savings: list[_Saving], failures: Failures) -> Iterator[str]:
    """Compare the other ways to save with the first, and name the cost of a queue's time limit."""
    first, *alternatives = savings
    for saving in alternatives:
        wait, first_wait, behind = map(
            format_seconds, (saving.row["wait_s"], first.row["wait_s"], saving.row["behind_s"])
        )
        if saving.settings.full:
            factor = saving.row["wait_s"] / max(first.row["wait_s"], 1e-9)
            yield (
                f"Sharded checkpoints are {factor:.3g} times as fast as one rank that gathers and "
                f"writes all of it ({wait})."
            )
        elif (
            saving.row["wait_s"] >= first.row["wait_s"]
            or saving.settings.file_system != first.settings.file_system
        ):
            continue
        elif saving.settings.asynchronous:
            bytes_of_node = float(saving.saved.most_bytes) * point.machine.node.num_devices
            yield (
                f"Asynchronous checkpoints wait {wait} instead of {first_wait}, take up to "
                f"{format_bytes(bytes_of_node)} of a node's memory, and cannot follow each other "
                f"closer than {behind}."
            )
        else:
            yield (
                f"Checkpoints on the nodes' own disks wait {wait} instead of {first_wait}; until "
                f"they are drained, {behind} later, they are lost with their node."
            )
    yield from _time_limit_cost(point, _best(savings), failures)


def _time_limit_cost(point: PlanPoint, best: Row, failures: Failures) -> Iterator[str]:
    queues = [q for q in point.machine.scheduler.queues if not q.on_request]
    admitting = [q for q in queues if q.min_nodes <= point.nodes <= q.max_nodes]
    if not admitting:
        return
    longest = max(admitting, key=lambda q: q.max_hours)
    limit_s = 3600 * longest.max_hours
    start_s = best["restart_s"] - detection_s(failures)
    lost_s = min(best["interval_s"], limit_s) / 2
    yield (
        f"In jobs of {longest.max_hours:g} h ({longest.name}) starting takes "
        f"{100 * start_s / limit_s:.1f} % of the time, and an end without a checkpoint loses "
        f"{format_seconds(lost_s)} of work on average; with a signal before the limit it loses one "
        f"checkpoint, {format_seconds(best['wait_s'])}."
    )
