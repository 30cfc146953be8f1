"""Comparisons: one machine against others, and the gain of each machine or software change."""

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, amount_of_training, plan_or_reason, plan_point, verb
from planner.ask.question import Findings, JobFields, name_or_fields, question
from planner.choose.jobs.job_spec import JobSpec, frameworks_for
from planner.choose.verdicts.differences import equal_work, time_changes
from planner.describe.catalogue import load_framework, load_machine
from planner.describe.files import read_toml
from planner.describe.framework.switches import strip_switches
from planner.describe.machine import Machine
from planner.describe.machine.variants import override_fields
from planner.errors import LayoutError, PlannerError, shorten
from planner.units import counted, format_amount, format_seconds

_DOUBLED = read_toml(Path(__file__).with_name("doubled.toml"))
_SMALL_PART = 0.005


@question
def machine(
    job: JobSpec,
    *,
    against: tuple[str | Machine, ...],
    nodes: int = 1,
    same: Literal["devices", "nodes"] = "devices",
    by: Literal["time", "node-hours"] = "time",
    **_: Unpack[JobFields],
) -> Findings:
    """Find the machine on which a job is fastest, or takes the fewest node-hours.

    The other machines get at least as many devices as the first, or the same number of nodes. A
    machine that cannot run the job, for example because it lacks the precision, is a row with the
    reason.
    """
    if not against:
        raise LayoutError("no other machine is named; name at least one")
    named_machines = {str(each): each for each in against}.values()
    loaded = [each if isinstance(each, Machine) else load_machine(each) for each in named_machines]
    devices = nodes * job.machine.node.num_devices
    points = []
    for each in (job.machine, *loaded):
        count = -(-devices // each.node.num_devices) if same == "devices" else nodes
        points.append(plan_or_reason(job, machine=each, nodes=count))
    measure = "node_hours" if by == "node-hours" else "seconds"
    # ties keep the order in which the machines were given
    points.sort(key=operator.attrgetter(measure))
    unproven = [p.machine.name for p in points if p.fits and not p.machine.evidence]
    notes = ["Every machine has its own plan, with the layout and framework that suit it."]
    if unproven:
        notes.append(f"No measured run supports the estimates for {', '.join(unproven)}.")
    names = [each if isinstance(each, str) else name_or_fields("machine", each) for each in against]
    return Findings(
        _best_machine(job, points, measure),
        [{"machine": point.machine.name, **point.row()} for point in points],
        notes,
        success=points[0].fits,
        values={"against": names},
    )


def _best_machine(job: JobSpec, points: list[PlanPoint], measure: str) -> str:
    best, *runners_up = points
    model, second = job.model.name, next((point for point in runners_up if point.fits), None)
    if not best.fits:
        return f"{model} fits on none of these machines: {best.reason}."
    cost = (
        f"{best.describe()}, {format_amount(best.node_hours)} node-hours for "
        f"{amount_of_training(best.workload)}"
    )
    if second is None:
        return f"Only {_with_devices(best)} can run {model}: {cost}."
    ratio = float(getattr(second, measure) / getattr(best, measure))
    unit, praise = {
        "seconds": ("time", f"{verb(best.nodes, 'are', 'is')} the fastest"),
        "node_hours": ("node-hours", f"{verb(best.nodes, 'take')} the fewest node-hours"),
    }[measure]
    # if the intervals overlap, the runner-up may be better
    (_, best_estimate), (_, second_estimate) = best.recommended(), second.recommended()
    highest = best_estimate.interval_step_time_s[1] / best_estimate.step_time_s
    lowest = ratio * second_estimate.interval_step_time_s[0] / second_estimate.step_time_s
    overlap = ", but their 90 % intervals overlap" if lowest < highest else ""
    is_same = f"{ratio:.2f}" == "1.00"
    times = f"the same {unit}" if is_same else f"{ratio:.2f} times the {unit}{overlap}"
    return (
        f"{_with_devices(best)} {praise} for {model}: {cost}. {_with_devices(second)} "
        f"{verb(second.nodes, 'take')} {times}."
    )


def _with_devices(point: PlanPoint) -> str:
    return f"{point.place} ({counted(point.devices, 'device')})"


class _Change(NamedTuple):
    """A change: its kind, its name, and the job or workload fields that it sets."""

    kind: str
    name: str
    fields: dict[str, Any]


@question
def change(
    job: JobSpec, *, nodes: int = 1, also: tuple[str, ...] = (), **_: Unpack[JobFields]
) -> Findings:
    """Plan a job again with each of many changes to machine, job and software, one at a time.

    Changes: faster and larger parts of the machine, twice the nodes, twice the batch, fp8, every
    other framework, every switch of the recommended one. Gain is the relative change of tokens/s.
    """
    job = job.replaced(nodes=nodes)
    machines = {shorten(text): override_fields(job.machine, (text,)) for text in also}
    now = plan_point(job)
    changes = [_Change("machine", name, {"machine": each}) for name, each in machines.items()]
    changes += [*_machine_changes(job), *_job_changes(job), *_software_changes(job, now)]
    points = [(each, plan_or_reason(job, **each.fields)) for each in changes]
    points.sort(key=lambda pair: -pair[1].tokens_per_s)
    return Findings(
        _largest_gains(now, points),
        [
            _row(each, point, now)
            for each, point in [(_Change("now", "unchanged", {}), now), *points]
        ],
        notes=[
            f"{counted(len(points), 'change')} planned again, one at a time.",
            "Some switches change what is computed (number formats, compression).",
        ],
        success=any(point.fits for _, point in points),
    )


def _machine_changes(job: JobSpec) -> Iterator[_Change]:
    """Yield doublings of quantities that the machine states, and half its network latency."""
    machine = job.machine
    networked = job.nodes > 1 and machine.node.num_nics > 0
    for name, paths in _DOUBLED.items():
        fields = [path for path in paths if machine.domain or not path.startswith("domain.")]
        rates = {path: operator.attrgetter(path)(machine) for path in fields}
        doubled = tuple(
            f"{path}={2 * rate.value!r}" for path, rate in rates.items() if rate is not None
        )
        if doubled and (networked or not name.startswith("network")):
            yield _Change("machine", name, {"machine": override_fields(machine, doubled)})
    if networked and machine.network is not None:
        latency = f"network.latency_s={machine.network.latency_s.value / 2!r}"
        halved = override_fields(machine, (latency,))
        yield _Change("machine", "half the latency of the network", {"machine": halved})


def _job_changes(job: JobSpec) -> Iterator[_Change]:
    workload = job.workload
    if 2 * job.nodes <= job.machine.num_nodes.value:
        yield _Change("job", counted(2 * job.nodes, "node"), {"nodes": 2 * job.nodes})
    batch = 2 * workload.global_batch
    changes: dict[str, dict[str, Any]] = {f"a batch of {batch:,}": {"global_batch": batch}}
    if workload.precision != "fp8" and "fp8" in job.machine.device.peak_flop_per_s:
        changes["fp8"] = {"precision": "fp8"}
    for name, fields in changes.items():
        try:
            workload.replaced(**fields)
        except PlannerError:
            continue  # the workload cannot have this batch or precision
        yield _Change("job", name, fields)


def _software_changes(job: JobSpec, now: PlanPoint) -> Iterator[_Change]:
    current = "" if now.best is None else now.best.framework
    for framework in frameworks_for((), job.machine):
        if strip_switches(framework.name) != strip_switches(current):
            yield _Change("framework", f"with {framework.name}", {"frameworks": framework})
    if not current:
        return
    same_name = (each for each in job.frameworks if each.name == current)
    framework = next(same_name, None) or load_framework(current)
    for name, switch in framework.switches.items():
        if name in framework.active_switches or (switch.takes and not switch.usual):
            continue
        if switch.refuses(job.machine.device) or switch.refuses_workload(job.workload, job.model):
            continue
        word = f"{name}={switch.usual}" if switch.takes else name
        try:
            switched = framework.with_switches(word)
        except PlannerError:
            continue  # it needs another switch, or conflicts with an active one
        yield _Change("switch", f"{current}+{word}", {"frameworks": (switched,)})


def _row(each: _Change, point: PlanPoint, now: PlanPoint) -> Row:
    names = {"change": each.name, "kind": each.kind}
    if not (point.fits and now.fits):
        return {**names, **point.row()}
    gain = point.tokens_per_s / now.tokens_per_s - 1
    return {**names, **point.row(_largest_difference(point, now), gain=gain)}


def _largest_difference(point: PlanPoint, now: PlanPoint) -> str:
    """Name the part of the step time that changes most, scaled to the same number of tokens."""
    (_, after), (_, before) = point.recommended(), now.recommended()
    changes = time_changes(before, after)
    faster = sum(each.change for each in changes) < 0
    largest = max(changes, key=lambda each: -each.change if faster else each.change)
    if abs(largest.change) < _SMALL_PART * before.step_time_s:
        return "no part of the step changes much"
    old, new = format_seconds(largest.before), format_seconds(largest.after)
    equal = "" if equal_work(before, after) == 1 else " for as many tokens"
    return f"{largest.label} {old} -> {new}{equal}"


def _largest_gains(now: PlanPoint, points: list[tuple[_Change, PlanPoint]]) -> str:
    fitting = [(each, point) for each, point in points if point.fits]
    if now.fits:
        gains = [
            f"{each.name} {100 * (point.tokens_per_s / now.tokens_per_s - 1):+.1f} %"
            for each, point in fitting[:3]
        ]
        return f"Largest gains in tokens/s: {', '.join(gains)}. Today: {now.describe()}."
    if not fitting:
        return f"Nothing fits on {now.place}, and no change makes it fit: {now.reason}."
    each, point = fitting[0]
    return (
        f"Nothing fits on {now.place}; the fastest change that fits is {each.name}: "
        f"{point.describe()}."
    )
