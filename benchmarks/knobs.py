"""Knobs: the estimated effect of each setting on a published case, next to the measured one.

    python benchmarks/knobs.py          # writes docs/reference/knobs.md from benchmarks/knobs/

A case is a job and the settings to change. Its figure is estimated before and after, and compared
with published or traced values. A run is a published layout with its step time: the page shows
whether it is estimated to fit, and whether its time lies in the interval.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import typer
from pydantic import Field

from planner.choose.planning import estimate
from planner.choose.user_layouts import complete_layout
from planner.cost.estimate import Estimate
from planner.describe.base import Description
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.files import read_toml
from planner.errors import PlannerError
from planner.units import format_bytes, format_seconds

ROOT = Path(__file__).parent.parent
_CASES = Path(__file__).with_suffix("")
_ABOUT = """\
Written by `benchmarks/knobs.py`; do not edit by hand. Settings that users change every day: the
option, its effect in the estimate on a published or traced case, and the measured or published
effect. How each is counted is in [the method](../explanation/method.md).

No figure of this page was used to fit anything unless its note says so."""
_RUNS = """\
Layouts with a published step time: whether the estimate says that they fit, and whether the time
lies in its 90 % interval."""
_LEFT_OUT = "Settings that are no knob here, with the reason."


class Job(Description):
    """A job with all its stated fields."""

    model: str
    machine: str
    framework: str
    layout: dict[str, Any] = Field(default_factory=dict)
    workload: dict[str, Any] = Field(default_factory=dict)
    set: tuple[str, ...] = ()
    """Overrides of the machine."""

    def turned(self, changes: dict[str, Any]) -> Job:
        """Return the job with changed settings."""
        own = {name: {**getattr(self, name), **changes.get(name, {})} for name in _TABLES}
        return self.replaced(**{**changes, **own})

    def estimate(self) -> Estimate:
        """Estimate memory and step time."""
        machine, model = load_machine(self.machine, self.set), load_model(self.model)
        workload = {k: tuple(v) if isinstance(v, list) else v for k, v in self.workload.items()}
        layout = {k: tuple(v) if isinstance(v, list) else v for k, v in self.layout.items()}
        job = complete_layout(
            model,
            machine,
            layout=layout,
            workload=workload,
            framework=load_framework(self._framework),
        )
        return estimate(model, machine, job.layout, workload=job.workload, framework=job.framework)

    @property
    def _framework(self) -> str:
        """Name or file of the framework; a .toml path is relative to the repository root."""
        return str(ROOT / self.framework) if ".toml" in self.framework else self.framework


_TABLES = ("layout", "workload")


class Published(Description):
    """Measured values, in SI units."""

    before: float | None = None
    after: float | None = None
    change: float | None = None
    """Relative change (after / before - 1), if only that is known."""
    fits: bool | None = None


class Case(Description):
    """One knob changed on one job."""

    knob: str
    said: str
    figure: str
    job: Job
    turned: dict[str, Any]
    published: Published | None = None
    traced: str = ""
    source: str = ""
    note: str = ""

    def row(self) -> tuple[str, ...]:
        """As the table shows it."""
        return (
            self.knob,
            self.said,
            str(self.job.model),
            self.figure.replace("_", " "),
            self._estimated(),
            self._measured(),
            "; ".join(filter(None, (self.source, self._trace(), self.note))),
        )

    def _estimated(self) -> str:
        try:
            before = self._figure(self.job.estimate())
            after = self._figure(self.job.turned(self.turned).estimate())
        except PlannerError as error:
            return f"refused: {error}"
        return self._changed(before, after)

    def _figure(self, answer: Estimate) -> float | bool:
        if self.figure == "fits":
            return answer.fits
        if self.figure in ("step_time", "tokens_per_s"):
            return answer.step_time_s if self.figure == "step_time" else answer.tokens_per_s
        parts = {**answer.memory_bytes, "memory": answer.memory_bytes["total"]}
        parts |= {f"host_{name}": size for name, size in answer.host_memory_bytes.items()}
        return (parts | answer.step_time_parts_s)[self.figure]

    def _changed(self, before: float | bool, after: float | bool) -> str:
        if isinstance(before, bool):
            return f"{_yes(before)} to {_yes(bool(after))}"
        change = f" ({after / before - 1:+.1%})" if before else ""
        return f"{self._said(before)} to {self._said(after)}{change}"

    def _measured(self) -> str:
        if self.published is None:
            return "not published"
        found = self.published
        if found.fits is not None:
            return "ran" if found.fits else "ran out of memory"
        if found.change is not None:
            return f"{found.change:+.1%}"
        if found.before is None or found.after is None:
            return " to ".join(("...", self._said(found.after or 0.0)))
        ratio = found.after / found.before - 1
        return f"{self._said(found.before)} to {self._said(found.after)} ({ratio:+.1%})"

    def _said(self, value: float) -> str:
        if self.figure == "tokens_per_s":
            return f"{value:,.0f}/s"
        timed = self.figure in ("step_time", *_time_parts())
        return format_seconds(value) if timed else format_bytes(value)

    def _trace(self) -> str:
        return f"traced: `{self.traced}`" if self.traced else ""


class Run(Description):
    """A published layout and its measured step time."""

    name: str
    job: Job
    step_time: float | None = None
    """Measured step time [s]."""
    source: str
    note: str = ""

    def row(self) -> tuple[str, ...]:
        """As the table shows it."""
        try:
            answer = self.job.estimate()
        except PlannerError as error:
            return self.name, f"refused: {error}", *[""] * 5, self.source
        low, high = answer.interval_step_time_s
        room = format_bytes(answer.memory_bytes["total"])
        return (
            self.name,
            f"{answer.layout} [{answer.framework}]",
            f"{_yes(answer.fits)}, {room}",
            format_seconds(answer.step_time_s),
            f"{format_seconds(low)} to {format_seconds(high)}",
            *self._ran(answer.step_time_s, low, high),
            "; ".join(filter(None, (self.source, self.note))),
        )

    def _ran(self, step: float, low: float, high: float) -> tuple[str, str]:
        ran = self.step_time
        if ran is None:
            return "time not published", ""
        within = "within" if low <= ran <= high else "outside"
        return format_seconds(ran), f"{within}, {step / ran - 1:+.0%}"


class LeftOut(Description):
    """A setting that the planner does not model."""

    knob: str
    why: str


class Cases(Description):
    """One file of cases."""

    cases: tuple[Case, ...] = ()
    runs: tuple[Run, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


@functools.cache
def _time_parts() -> tuple[str, ...]:
    from planner.cost.parts import TIME_PARTS

    return tuple(TIME_PARTS)


def _yes(value: Literal[True, False] | bool) -> str:
    return "fits" if value else "does not fit"


def read_cases(folder: Path = _CASES) -> list[Cases]:
    """Read every file of a folder, sorted by name."""
    return [
        Cases.described(read_toml(path), where=path.name) for path in sorted(folder.glob("*.toml"))
    ]


def _table(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def page(found: list[Cases]) -> str:
    """Return the whole page."""
    lines = ["# Knobs", "", _ABOUT, ""]
    header = ("knob", "option", "on", "figure", "estimate", "published", "source and notes")
    lines += _table(header, (case.row() for part in found for case in part.cases))
    lines += ["## Published layouts", "", _RUNS, ""]
    header = ("run", "layout", "memory", "estimate", "interval", "measured", "", "source and notes")
    lines += _table(header, (run.row() for part in found for run in part.runs))
    lines += ["## Left out", "", _LEFT_OUT, ""]
    lines += _table(("knob", "why"), ((o.knob, o.why) for part in found for o in part.left_out))
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write the page."""
    (ROOT / "docs" / "reference" / "knobs.md").write_text(page(read_cases()), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
