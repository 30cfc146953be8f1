"""Node counts: the fewest nodes for a job, and how it scales to more."""

from typing import Literal, Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import PlanPoint, nodes_of, plan_or_reason, step_time, verb
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import Scan, doublings, first_common, node_limit, scan, smallest
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.preferences import preferences
from planner.units import counted

_LARGER_ROWS = 3
"""Number of doublings beyond the smallest node count that the table shows."""


@question
def nodes(job: JobSpec, *, most_nodes: int | None = None, **_: Unpack[JobFields]) -> Findings:
    """Find the smallest node counts where a job fits, is safe, and has a common layout.

    Safe: the out-of-memory risk is at most 5 %. Common: it is safe, nothing is offloaded, tensor
    parallelism stays among wired devices, the pipeline is not deeper than published ones, and
    context parallelism keeps long slices. Rows are the node counts that were planned.
    """
    limit = node_limit(job, most_nodes)
    counts, points = range(1, limit + 1), scan(job, "nodes")
    fits = smallest(counts, lambda count: points[count].fits)
    safe = fits and smallest(counts, lambda count: points[count].safe)
    common = safe and smallest(counts, lambda count: points[count].common)
    best = common or safe or fits
    points.plan_all([n for n in doublings(counts) if n > (best or limit)][:_LARGER_ROWS])
    notes = [f"Safe: an out-of-memory risk of at most {100 * preferences().risk:.0f} %."]
    queues = job.machine.scheduler.queues
    if best and queues:
        admitting = [q.name for q in queues if q.min_nodes <= best <= q.max_nodes]
        listed = ", ".join(admitting) or "none"
        notes.append(f"Queues that admit {counted(best, 'node')}: {listed}.")
    notes.append(
        f"{len(points)} of {counted(limit, 'node count')} planned: doublings, then all smaller "
        "counts if at most 16, else bisection with three neighbours."
    )
    return Findings(
        _fewest_nodes(points, limit, fits, safe, common),
        points.rows(),
        notes,
        success=fits is not None,
        values={"fewest": {"fits": fits, "safe": safe, "sensible": common}},
    )


def _fewest_nodes(points: Scan, limit: int, *fewest: int | None) -> str:
    """Name the fewest nodes where the job fits, is safe, and has a common layout."""
    (fits, safe, common), model = fewest, points.job.model.name
    most = nodes_of(points.job.machine, limit)
    if fits is None:
        none = "does not fit on" if limit == 1 else "fits on none of up to"
        return f"{model} {none} {most}: {points[limit].reason}."
    if common is None:
        least = points[safe or fits]
        return (
            f"{model} fits on {points[fits].place} or more, but on none of up to {most} with a "
            f"layout in common use: {least.describe()}, {least.reason}."
        )
    best = points[common]
    sentence = (
        f"{best.place} {verb(common, 'are the fewest', 'suffices')} for {model} with a layout in "
        f"common use: {best.describe()}."
    )
    if fits >= common:
        return sentence
    sentence += f" It fits from {counted(fits, 'node')} ({_uncommon(points[fits])})"
    if safe and fits < safe < common:
        sentence += f", and safely from {counted(safe, 'node')} ({_uncommon(points[safe])})"
    return f"{sentence}."


def _uncommon(point: PlanPoint) -> str:
    return "; ".join(point.uncommon_features) or "a common layout"


@question
def scaling(
    job: JobSpec,
    *,
    nodes: int = 1,
    kind: Literal["strong", "weak"] = "strong",
    efficiency: float = 80.0,
    most_nodes: int | None = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Plan doublings of the nodes: step time, throughput, parallel efficiency, and the knee.

    Efficiency is tokens/s per node over that of the first node count with a common layout (the
    first that fits if there is none). The knee is the last doubling that pays.
    """

    def plan(count: int) -> PlanPoint:
        batch = max(round(job.workload.global_batch * count / nodes), 1)
        return plan_or_reason(job, nodes=count, **({"global_batch": batch} if weak else {}))

    def row(point: PlanPoint) -> Row:
        if first is None or not point.fits:
            return point.row()
        share = point.tokens_per_s / point.nodes / (first.tokens_per_s / first.nodes)
        return point.row(global_batch=point.workload.global_batch, efficiency=share)

    weak, points = kind == "weak", Scan(job, plan)
    points.plan_all(doublings(range(1, node_limit(job, most_nodes) + 1)))
    first = first_common(points.fitting())
    rows = [row(point) for _, point in points.by_value()]
    compared = [each for each in rows if first is not None and each["nodes"] >= first.nodes]
    low = (n for n, each in enumerate(compared) if each.get("efficiency", 0.0) < efficiency / 100)
    last = next(low, len(compared))
    knee = compared[last - 1]["nodes"] if last else None
    reference = "nothing" if first is None else f"those on {counted(first.nodes, 'node')}"
    model, reason = job.model.name, rows[-1]["reason"]
    verdict = f"{model} fits on no node count of {job.machine.name} that was planned: {reason}."
    if first is not None and knee is not None:
        verdict = _knee(points[knee], first, *compared[last - 1 : last + 1])
        verdict = f"{kind.capitalize()} scaling of {model} pays up to {verdict}"
    return Findings(
        verdict,
        rows,
        notes=[
            f"Efficiency is tokens/s of a node over {reference}.",
            f"The knee is the last doubling before efficiency falls below {efficiency:g} %.",
        ],
        success=first is not None,
        values={"knee": knee},
    )


def _knee(point: PlanPoint, first: PlanPoint, row: Row, larger: Row | None = None) -> str:
    """Describe the knee, its efficiency, and that of the next larger node count."""
    _, best = point.recommended()
    sentence = (
        f"{point.place}: {100 * row['efficiency']:.0f} % of the tokens/s per node on "
        f"{', '.join([counted(first.nodes, 'node'), *point.changed, step_time(best)])}"
    )
    if larger is None:
        return f"{sentence}; this is the largest node count that was planned."
    sentence += f"; on {counted(larger['nodes'], 'node')}"
    if not larger["fits"]:
        return f"{sentence} it does not fit ({larger['reason']})."
    return f"{sentence} it is {100 * larger['efficiency']:.0f} % ({larger['reason']})."
