"""Machines: which of several is best for a job."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

from planner.ask.option import Option
from planner.ask.plan_point import PlanPoint, plan_or_reason
from planner.ask.question import Findings, JobFields, name_or_fields, question
from planner.ask.resources.training_time import amount_of_training
from planner.ask.sentences import verb
from planner.choose.jobs.job_spec import JobSpec
from planner.describe.catalogue import load_machine
from planner.describe.machine import Machine
from planner.errors import LayoutError
from planner.units import counted, format_amount

__all__ = ["machine"]


@question
def machine(
    job: JobSpec,
    *,
    against: Annotated[
        tuple[str | Machine, ...],
        Option("Another machine, name or TOML file (repeatable).", metavar="NAME"),
    ],
    nodes: Annotated[int, Option("Nodes of the first machine.", least=1)] = 1,
    same: Annotated[
        Literal["devices", "nodes"], Option("What all machines have the same number of.")
    ] = "devices",
    by: Annotated[Literal["time", "node-hours"], Option("What makes a machine better.")] = "time",
    **_: Unpack[JobFields],
) -> Findings:
    """Find the machine on which a job is fastest, or takes the fewest node-hours.

    The others get at least as many devices as the nodes of the first (`same="devices"`), or as many
    nodes. A machine that cannot run the job, for example without its precision, is a row with the
    reason.
    """
    if not against:
        raise LayoutError("against names no other machine; name at least one")
    other_machines = {str(each): each for each in against}.values()
    machines = [
        job.machine,
        *(each if isinstance(each, Machine) else load_machine(each) for each in other_machines),
    ]
    devices = nodes * job.machine.node.num_devices
    points = [
        plan_or_reason(
            job,
            machine=each,
            nodes=-(-devices // each.node.num_devices) if same == "devices" else nodes,
        )
        for each in machines
    ]
    measure = "node_hours" if by == "node-hours" else "seconds"
    # ties keep the order in which machines are named
    points.sort(key=lambda point: float(getattr(point, measure)))
    unproven = [p.machine.name for p in points if p.fits and not p.machine.evidence]
    notes = ["Every machine has its own plan, with the layout and framework that suit it."]
    if unproven:
        notes.append(f"No measured run supports the estimates for {', '.join(unproven)}.")
    return Findings(
        _verdict(job, points, measure),
        [{"machine": point.machine.name, **point.row()} for point in points],
        notes,
        success=points[0].fits,
        values={
            "against": [
                each if isinstance(each, str) else name_or_fields("machine", each)
                for each in against
            ]
        },
    )


def _verdict(job: JobSpec, points: list[PlanPoint], measure: str) -> str:
    best, *runners_up = points
    if best.best is None:
        return f"{job.model.name} fits on none of these machines: {best.reason}."
    cost = (
        f"{best.describe()}, {format_amount(best.node_hours)} node-hours for "
        f"{amount_of_training(best.workload)}"
    )
    second = next((point for point in runners_up if point.fits), None)
    if second is None or second.best is None:
        return f"{_with_devices(best)} alone can run {job.model.name}: {cost}."
    ratio = float(getattr(second, measure) / getattr(best, measure))
    unit = "node-hours" if measure == "node_hours" else "time"
    verdict = {
        "seconds": f"{verb(best.nodes, 'are', 'is')} the fastest for {job.model.name}",
        "node_hours": f"{verb(best.nodes, 'take')} the fewest node-hours for {job.model.name}",
    }[measure]
    # the intervals overlap where the runner-up may be better
    highest = best.best.interval_step_time_s[1] / best.best.step_time_s
    lowest = ratio * second.best.interval_step_time_s[0] / second.best.step_time_s
    overlap = ", but their 90 % intervals overlap" if lowest < highest else ""
    times = f"{ratio:.2f} times the {unit}{overlap}"
    if f"{ratio:.2f}" == "1.00":
        times = f"the same {unit}"
    return (
        f"{_with_devices(best)} {verdict}: {cost}. {_with_devices(second)} "
        f"{verb(second.nodes, 'take')} {times}."
    )


def _with_devices(point: PlanPoint) -> str:
    return f"{point.place} ({counted(point.devices, 'device')})"
