"""Largest jobs: the largest model of a family, and the longest sequence that fit."""

from typing import Unpack

from planner.ask.plan_point import (
    PlanPoint,
    needs_tokens,
    nodes_of,
    plan_or_reason,
    plan_point,
    within_days,
)
from planner.ask.question import Findings, JobFields, question
from planner.ask.scan import Scan, first_common, largest, scan
from planner.choose.jobs.job_spec import JobSpec
from planner.describe.catalogue import load_model, names
from planner.describe.model.model import Model
from planner.errors import LayoutError, UnknownNameError
from planner.training.whole_training import DAY_S
from planner.units import counted, format_count

_LONGEST = 4_194_304
# four times the longest context that models are trained for


def families() -> dict[str, list[Model]]:
    """Return the models of the catalogue by family, smallest first."""
    models: dict[str, list[Model]] = {}
    for each in map(load_model, names("model")):
        models.setdefault(each.family, []).append(each)
    return {family: sorted(models[family], key=_size) for family in sorted(models)}


def _size(model: Model) -> tuple[int, str]:
    return model.num_params, model.name


@question
def model(
    job: JobSpec,
    *,
    nodes: int = 1,
    family: str | None = None,
    among: tuple[str, ...] = (),
    days: float | None = None,
    **_: Unpack[JobFields],
) -> Findings:
    """Find the largest model of a family, or of those named, that a number of nodes can train.

    The model needs a layout that is safe in memory. Models with a layout in common use come first.
    With a time limit, the estimated time for the workload's tokens must not exceed it.
    """
    if days is not None:
        needs_tokens(job, "whether it is done in time")
    models = _models(job, family, among)
    points = [(each, plan_or_reason(job, model=each, nodes=nodes)) for each in reversed(models)]
    limit_s = float("inf") if days is None else days * DAY_S
    best = first_common([p for _, p in points if p.safe and p.seconds <= limit_s])
    source = f"the {counted(len(models), 'model')} named" if among else f"family {models[0].family}"
    place = nodes_of(job.machine, nodes)
    place += "" if days is None else f" and trains in {within_days(days)}"
    return Findings(
        _largest_model(points, best, source, place, days is not None),
        [
            {"model": each.name, "num_params": each.num_params, **point.row()}
            for each, point in points
        ],
        notes=["A model fits if its out-of-memory risk is at most 5 %."],
        success=best is not None,
    )


def _models(job: JobSpec, family: str | None, among: tuple[str, ...]) -> list[Model]:
    if among:
        return sorted(map(load_model, dict.fromkeys(among)), key=_size)
    catalogue = families()
    name = job.model.family if family is None else family
    if name not in catalogue:
        listing = "`planner models` lists them with the models"
        raise UnknownNameError("family", name, catalogue, listing)
    if name != job.model.family:
        return catalogue[name]
    rest = [each for each in catalogue[name] if each.name != job.model.name]
    return sorted([job.model, *rest], key=_size)


def _largest_model(
    points: list[tuple[Model, PlanPoint]],
    best: PlanPoint | None,
    source: str,
    place: str,
    is_timed: bool,
) -> str:
    """Name the largest model that fits, and why the next larger one does not."""
    if best is None:
        model, point = points[-1]
        reason = point.reason
        if point.fits:
            reason = f"{point.describe()}; {point.seconds / DAY_S:.3g} days"
        return f"No model of {source} fits {place}: the smallest, {model.name}: {reason}."
    model = next(each for each, point in points if point is best)
    uncommon = f" ({'; '.join(best.uncommon_features)})" if best.uncommon_features else ""
    sentence = (
        f"{model.name} ({format_count(model.num_params)} parameters) is the largest of {source} "
        f"that fits {place}{uncommon}: {best.describe()}"
    )
    larger = [pair for pair in points if pair[0].num_params > model.num_params]
    if not larger:
        return f"{sentence}; there is no larger one."
    next_model, point = larger[-1]
    if not point.fits:
        return f"{sentence}. The next, {next_model.name}, does not fit: {point.reason}."
    drawbacks = list(point.uncommon_features)
    drawbacks += [f"it takes {point.seconds / DAY_S:.3g} days"] if is_timed else []
    return f"{sentence}. The next, {next_model.name}, fits, but: {'; '.join(drawbacks)}."


@question
def sequence(
    job: JobSpec, *, nodes: int = 1, grain: int = 1024, **_: Unpack[JobFields]
) -> Findings:
    """Find the longest sequence with a common layout, and the longest that is safe in memory.

    The global batch keeps its number of sequences. Lengths go up to 4 Mi tokens, bisected to 1/64.
    A model's usual length is a limit only if its positions are a learned table.
    """
    job = job.replaced(nodes=nodes)
    _check_grain(job.model, grain)
    own_length, usual = job.workload.sequence_length, job.model.longest_sequence
    lengths = scan(job, "sequence_length")
    lengths.points[own_length] = plan_point(job)
    start = max(own_length // grain, 1) * grain
    longest = largest(start, _LONGEST, grain, lambda length: lengths[length].safe)
    if longest:
        largest(start, longest, grain, lambda length: lengths[length].common)
    # bisection may have passed a longer sequence that is safe
    safe = max(lengths.values_where(lambda point: point.safe), default=None)
    common = max(lengths.values_where(lambda point: point.common), default=None)
    notes = [
        f"{counted(len(lengths), 'length')} planned: the workload's {own_length:,} tokens, and "
        f"multiples of {grain:,} by doubling and bisection; the batch stays at "
        f"{job.workload.global_batch:,} sequences."
    ]
    if usual and safe is not None and safe > usual:
        notes.insert(0, f"{job.model.name} was made for sequences of at most {usual:,} tokens.")
    return Findings(
        _longest_sequence(lengths, safe, common, grain),
        lengths.rows("sequence_length"),
        notes,
        success=safe is not None,
        values={"longest": {"safe": safe, "sensible": common}},
    )


def _check_grain(model: Model, grain: int) -> None:
    longest = model.longest_sequence
    if model.counts_samples:
        raise LayoutError(
            f"model = {model.name} trains on samples of one size, not sequences; ask for the "
            "largest batch instead"
        )
    if model.position == "learned" and longest and grain > longest:
        raise LayoutError(
            f"grain = {grain} exceeds the {longest} learned positions of {model.name}, so none of "
            f"its multiples is a sequence; use a grain of {longest} or less"
        )


def _longest_sequence(lengths: Scan, safe: int | None, common: int | None, grain: int) -> str:
    """Name the longest sequence with a common layout, and the longest that is safe."""
    model = lengths.job.model.name
    if safe is None:
        reason = f"{lengths[grain].place}: {lengths[grain].reason}"
        return (
            f"No multiple of {counted(grain, 'token')} is a safe sequence of {model} on {reason}."
        )
    best = lengths[common or safe]
    if safe < grain:
        # only the workload's own length is shorter than the grain
        return (
            f"{model} is safe on {best.place} with the {safe:,} tokens of the workload, and with "
            f"no multiple of {grain:,}: {best.describe()}. Use a smaller grain for lengths between."
        )
    length = best.workload.sequence_length
    tokens = f"{length:,} tokens{' or more' if length + grain > _LONGEST else ''} is the longest"
    uncommon = "; ".join(lengths[safe].uncommon_features)
    if common is None:
        return (
            f"{tokens} safe sequence of {model} on {best.place}, and no length has a common layout "
            f"({uncommon}): {best.describe()}."
        )
    sentence = (
        f"{tokens} sequence of {model} on {best.place} with a layout in common use: "
        f"{best.describe()}."
    )
    more = f" Up to {safe:,} tokens are safe with more effort ({uncommon})."
    return sentence if common == safe else sentence + more
