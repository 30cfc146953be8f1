"""Profiles of torch.profiler (Kineto): steps, each with the device's time by activity."""

import gzip
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.errors import shorten, shorten_path
from planner.evidence.logs.steps import LogError, RunLog, Source, Step, step_of, summary

_SOURCE = Source(
    "kineto",
    "torch profiler",
    note="a profiled step is slower than others, most of all where its kernels are short",
)
_MAX_BYTES = 300_000_000
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_COLLECTIVES = ("nccl", "rccl", "oneccl", "ccl_")
_US = 1e-6

Spans = NDArray[np.float64]
"""Start and end of events, one row each [us]."""


def is_profile(head: bytes) -> bool:
    """True if a file starts like a profile."""
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(31).decompress(head, 65_536)
        except zlib.error:
            return False
    return head.lstrip()[:1] == b"{" and (b'"traceEvents"' in head or b'"schemaVersion"' in head)


def read_profile(path: Path) -> RunLog:
    """Read the steps of a profile. Raises LogError if the file is cut off or marks no step."""
    where = shorten_path(path)
    trace = _loaded(path, where)
    events = [event for event in trace.get("traceEvents") or [] if _is_span(event)]
    categories = ("user_annotation", "gpu_user_annotation")
    candidates = (_spans(e for e in events if _is_mark(e, category)) for category in categories)
    marks = next((spans for spans in candidates if spans.size), None)
    if marks is None:
        raise LogError(
            f"{where} marks no step; profile with a schedule and call prof.step() after each step"
        )
    device = [event for event in events if str(event.get("cat")) in _DEVICE]
    communication = _union(_spans(e for e in device if _communicates(e)))
    computation = _union(_spans(e for e in device if not _communicates(e)))
    steps = [_step(mark, computation, communication) for mark in marks]
    return summary(_SOURCE, steps, _facts(trace), where)


def _loaded(path: Path, where: str) -> Mapping[str, Any]:
    try:
        data = _unpacked(path)
        trace = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (ValueError, RecursionError, EOFError, zlib.error, OSError) as error:
        raise LogError(
            f"{where} is not a complete profile: {shorten(str(error))}; export it again"
        ) from None
    if len(data) > _MAX_BYTES:
        raise LogError(
            f"{where} has over {_MAX_BYTES / 1e6:.0f} MB; larger profiles are refused: profile "
            "fewer steps, without shapes and stacks"
        )
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise LogError(f"{where} holds no list of traceEvents; export it with torch.profiler")
    return trace


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def _is_span(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    times = event.get("ts"), event.get("dur")
    return all(isinstance(time, int | float) and abs(time) < 1e18 for time in times)


def _is_mark(event: Mapping[str, Any], category: str) -> bool:
    return event.get("cat") == category and str(event.get("name")).startswith("ProfilerStep#")


def _communicates(event: Mapping[str, Any]) -> bool:
    name = str(event.get("name")).lower()
    return any(word in name for word in _COLLECTIVES)


def _spans(events: Any) -> Spans:
    rows = sorted((float(e["ts"]), float(e["ts"] + e["dur"])) for e in events)
    return np.array(rows, dtype=np.float64).reshape(-1, 2)


def _union(spans: Spans) -> Spans:
    """Join overlapping spans; the spans are sorted by start."""
    if not spans.size:
        return spans
    until = np.maximum.accumulate(spans[:, 1])
    opens = np.append(True, spans[1:, 0] > until[:-1])
    closes = np.append(opens[1:], True)
    return np.column_stack((spans[opens, 0], until[closes]))


def _within(spans: Spans, window: Spans) -> float:
    covered = np.minimum(spans[:, 1], window[1]) - np.maximum(spans[:, 0], window[0])
    return float(covered.clip(0).sum())


def _step(window: Spans, computing: Spans, communicating: Spans) -> Step:
    elapsed = float(window[1] - window[0])
    computed = _within(computing, window)
    both = np.concatenate((computing, communicating))
    busy = _within(_union(both[np.argsort(both[:, 0])]), window)
    activity = {
        "computing_s": computed * _US,
        "exposed_communication_s": (busy - computed) * _US,
        "idle_s": (elapsed - busy) * _US,
    }
    return step_of({"time_s": elapsed * _US, **(activity if busy else {})})


def _facts(trace: Mapping[str, Any]) -> dict[str, float]:
    ranks = trace.get("distributedInfo")
    world = ranks.get("world_size") if isinstance(ranks, dict) else None
    return {"world": float(world)} if isinstance(world, int) and 0 < world < 1e9 else {}
