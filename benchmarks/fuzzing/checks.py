"""Checks: what an accepted input must give, and how a refusal must read."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from typing import Any

from planner.cli import main as command_line
from planner.cost.estimate import Estimate

_LONGEST_REFUSAL = 900
_REMEDY = re.compile(
    r"; |: |\(`planner|did you mean|known are|\b(?:use|give|set|choose|write|leave|add|see|name|"
    r"correct|lower|raise|state|drop|split|save|remove|measure|check|keep)\b"
)
_USAGE = re.compile("Usage:|usage:")


class Odd(Exception):
    """Raised for an answer that is not finite or makes no sense, and a refusal that says little."""


class Refused(Exception):
    """Raised when an input is refused by other means than a PlannerError; carries the text."""


def check_refusal(text: str) -> None:
    """Raise Odd unless a refusal is one short printable line with a remedy."""
    shown = f"{text[:300]!r}"
    if not text.strip() or "\n" in text.strip() or not text.strip().isprintable():
        raise Odd(f"refusal is not one line: {shown}")
    if len(text) > _LONGEST_REFUSAL:
        raise Odd(f"refusal of {len(text)} characters: {shown}")
    if not _REMEDY.search(text):
        raise Odd(f"refusal without a remedy: {shown}")


def check_finite(data: Any, where: str = "answer") -> None:
    """Raise Odd if any number is not finite."""
    if isinstance(data, dict):
        for key, value in data.items():
            check_finite(value, f"{where}.{key}")
    elif isinstance(data, list | tuple):
        for value in data:
            check_finite(value, where)
    elif isinstance(data, float) and not math.isfinite(data):
        raise Odd(f"{where} is {data}")


def _check_sum(name: str, parts: dict[str, float], total: float) -> None:
    for part, value in {**parts, "total": total}.items():
        if not (math.isfinite(value) and value >= 0):
            raise Odd(f"{name}.{part} is {value}")
    if not math.isclose(sum(parts.values()), total, rel_tol=1e-9, abs_tol=1e-12):
        raise Odd(f"{name}: parts sum to {sum(parts.values())}, total is {total}")


def check_estimate(estimate: Estimate) -> None:
    """Raise Odd if figures are not finite or negative, or parts, totals, intervals disagree."""
    _check_sum("step_time_parts_s", estimate.step_time_parts_s, estimate.step_time_s)
    for name in ("memory_bytes", "host_memory_bytes"):
        parts = dict(getattr(estimate, name))
        _check_sum(name, parts, parts.pop("total"))
    intervals = {
        "step time": (estimate.interval_step_time_s, estimate.step_time_s),
        "memory": (estimate.interval_memory_bytes, estimate.memory_bytes["total"]),
    }
    for name, ((low, high), middle) in intervals.items():
        if not (math.isfinite(high) and 0 <= low <= middle * (1 + 1e-9) <= high * (1 + 2e-9)):
            raise Odd(f"interval of {name}: {low} to {high} around {middle}")
    # full attention is counted, and causal kernels skip half of it: 1.05 at 1,000,000 tokens
    if not 0 <= estimate.mfu <= 2:
        raise Odd(f"mfu is {estimate.mfu}")
    if not 0 <= estimate.out_of_memory_probability <= 1 or estimate.tight > estimate.fits:
        raise Odd(f"fits {estimate.fits}, tight {estimate.tight}")
    if not estimate.step_time_s > 0 < estimate.tokens_per_s:
        raise Odd(f"{estimate.tokens_per_s} tokens/s in steps of {estimate.step_time_s} s")
    check_finite(estimate.record())


def ask(arguments: list[str]) -> str:
    """Run a command in this process: JSON must be finite, a refusal exits with 2 and one line."""
    printed, said = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            command_line(arguments)
        except SystemExit as stop:
            code = stop.code
    if code == 2:
        text = said.getvalue()
        raise Refused("usage: see above" if _USAGE.search(text) else text)
    if code not in (0, 1, 3):
        raise Odd(f"exit code {code}: {said.getvalue()[-300:]}")
    if "--json" in arguments and printed.getvalue()[:1] in ("{", "["):
        check_finite(json.loads(printed.getvalue()))
    return printed.getvalue()
