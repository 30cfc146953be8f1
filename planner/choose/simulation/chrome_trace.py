"""Chrome trace: a timeline in the Trace Event Format (Google 2016) for Perfetto; microseconds."""

from collections.abc import Sequence
from typing import Any

from planner.cost.schedules.timeline import ASYNC_TRANSFER, STREAMS, Event, Timeline

_PATH = 0
"""Process number of the critical path; the stages have the next numbers."""
_LANES = 8
"""Thread numbers per stream, one for each transfer that overlaps others."""

Counter = Sequence[tuple[float, dict[str, float]]]


def chrome_trace(
    timeline: Timeline, path: Sequence[Event], counters: Sequence[Counter], names: Sequence[str]
) -> dict[str, Any]:
    """Convert a timeline to a trace, with the name and memory of each stage [B]."""
    critical, lanes = {id(event) for event in path}, _lanes(timeline)
    records = [_slice(e, e.stage + 1, lanes[n], id(e) in critical) for n, e in _visible(timeline)]
    records += [_slice(e, _PATH, 0, True) for e in path if _us(e.end_s) > _us(e.start_s)]
    records += _arrows(timeline, lanes)
    for stage, counter in enumerate(counters):
        records += [
            {"ph": "C", "name": "memory [B]", "pid": stage + 1, "ts": _us(time), "args": amounts}
            for time, amounts in counter
        ]
    # the sort is stable: at equal times slices keep their order and precede arrows
    records.sort(key=lambda record: record["ts"])
    names_first = [*_threads(timeline, lanes, names), *records]
    return {"traceEvents": names_first, "displayTimeUnit": "ms"}


def _us(seconds: float) -> float:
    """Convert to microseconds, rounded to 1 ns so that no event starts before another ends."""
    return round(1e6 * seconds, 3)


def _visible(timeline: Timeline) -> list[tuple[int, Event]]:
    """Events that take time after rounding, with their indices."""
    return [(n, e) for n, e in enumerate(timeline.events) if _us(e.end_s) > _us(e.start_s)]


def _lanes(timeline: Timeline) -> dict[int, int]:
    """Thread of every event: the first idle thread of its stream."""
    busy_until: dict[tuple[int, str], list[float]] = {}
    lanes = {}
    for number, event in sorted(_visible(timeline), key=lambda item: item[1].start_s):
        ends = busy_until.setdefault((event.stage, event.stream), [])
        start = _us(event.start_s)
        lane = next((i for i, end in enumerate(ends) if end <= start), len(ends))
        ends[lane:] = [_us(event.end_s), *ends[lane + 1 :]]
        lanes[number] = STREAMS.index(event.stream) * _LANES + lane
    return lanes


def _slice(event: Event, process: int, thread: int, critical: bool) -> dict[str, Any]:
    name = event.kind.replace("_", " ")
    if event.kind == ASYNC_TRANSFER:
        name = "activations sent" if event.task.kind == "forward" else "gradients sent"
    args: dict[str, Any] = {"stream": event.stream, "critical": critical}
    if event.in_passes:
        name = f"{name} {event.micro_batch}"
        args |= {"micro-batch": event.micro_batch, "chunk": event.chunk}
    if event.hidden:
        args["hidden"] = "behind computation"
    if process == _PATH:
        name = f"stage {event.stage}: {name}"
    start = _us(event.start_s)
    return {
        "ph": "X",
        "name": name,
        "cat": "hidden" if event.hidden else event.kind,
        "pid": process,
        "tid": thread,
        "ts": start,
        "dur": round(_us(event.end_s) - start, 3),
        "args": args,
    }


def _arrows(timeline: Timeline, lanes: dict[int, int]) -> list[dict[str, Any]]:
    arrows: list[dict[str, Any]] = []
    for after, waits in enumerate(timeline.waits):
        for before in waits:
            sent, event = timeline.events[before], timeline.events[after]
            if sent.kind != ASYNC_TRANSFER or before not in lanes or after not in lanes:
                continue
            common = {"cat": "sent", "name": "sent", "id": before}
            start = {"ph": "s"}, sent, lanes[before]
            end = {"bp": "e", "ph": "f"}, event, lanes[after]
            for phase, place, lane in (start, end):
                at = {"pid": place.stage + 1, "tid": lane, "ts": _us(place.start_s)}
                arrows.append({**common, **phase, **at})
    return arrows


def _threads(
    timeline: Timeline, lanes: dict[int, int], names: Sequence[str]
) -> list[dict[str, Any]]:
    records = []
    for pid, name in enumerate(["critical path", *names]):
        records.append(_name(pid, 0, "process_name", name=name))
        records.append(_name(pid, 0, "process_sort_index", sort_index=pid))
    threads = {(timeline.events[n].stage + 1, lane) for n, lane in lanes.items()}
    for pid, lane in [(_PATH, 0), *sorted(threads)]:
        stream, number = divmod(lane, _LANES)
        name = "critical path" if pid == _PATH else STREAMS[stream]
        name = f"{name} {number + 1}" if number else name
        records.append(_name(pid, lane, "thread_name", name=name))
        records.append(_name(pid, lane, "thread_sort_index", sort_index=lane))
    return records


def _name(process: int, thread: int, key: str, **args: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": key, "pid": process, "tid": thread, "args": args}
