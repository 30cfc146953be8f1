"""Pages of machines and of other ways: commands print what is shown, and judgements are true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.cost.schedules.simulate import StageTime, simulate
from tests.console_pages import CONSOLE_PAGES, MACHINES, known, unconfirmed, written
from tests.markdown import table

_AGAIN = "python -m tests.console_pages writes the outputs again"


@pytest.mark.slow
@pytest.mark.parametrize("path", CONSOLE_PAGES, ids=lambda path: path.stem)
def test_a_page_shows_what_its_commands_print(path: Path) -> None:
    assert written(path) == path.read_text(encoding="utf-8"), _AGAIN


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_what_is_known_is_what_the_profile_says(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert f"\n{known(path.stem)}\n" in page, _AGAIN
    assert f"\n{unconfirmed(path.stem)}\n" in page, _AGAIN


def test_sites_of_the_machines() -> None:
    assert [path.stem for path in MACHINES] == ["aurora", "polaris", "vsc-5"]


def test_a_page_has_jobs_with_a_judgement() -> None:
    pages = [path.read_text(encoding="utf-8") for path in MACHINES]
    assert sum(page.count("\n**Published.**") for page in pages) >= 10
    assert all("--probe" in page and "planner validate" in page for page in pages)


_JUDGED = re.compile(
    r"step \S+ \S+ \(90 %: (\S+) to (\S+) (\S+)\)(?:(?!\$ planner).)*?"
    r"\*\*Published\.\*\* (\S+) s a step\. (Inside|Outside) the interval",
    re.DOTALL,
)
"""The interval of an output, and the published step below it."""


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_judgement_is_true(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    judged = _JUDGED.findall(page)
    assert len(judged) == page.count(" the interval.\n")
    for low, high, unit, published, side in judged:
        scale = {"s": 1.0, "ms": 1e-3}[unit]
        inside = float(low) * scale <= float(published) <= float(high) * scale
        assert inside == (side == "Inside"), published


def test_numbers_of_a_profile() -> None:
    table = unconfirmed("vsc-5")
    assert (
        "| `node.nic_bytes_per_s` | 2.5e+10 | general knowledge: one HDR port, 200 Gb/s |" in table
    )
    assert "`device.memory_bytes_per_s`" not in table


_WAYS = {row["way"]: row for row in table("other-ways.md", "Schedules")}
_RUN = {
    "GPipe": ("gpipe", 16, 1),
    "DAPPLE": ("1f1b", 16, 1),
    "interleaved, 2 chunks": ("interleaved-1f1b", 16, 2),
    "one stage after the other": ("gpipe", 1, 1),
}
"""Schedule, micro-batches and chunks of the ways that the planner runs."""


@pytest.mark.parametrize("way", _WAYS)
def test_idle_time_follows_from_its_formula(way: str) -> None:
    formula = _WAYS[way]["idle, by formula"].replace("2 m", "2 * m").replace("3 m", "3 * m")
    idle = eval(formula.removesuffix(" inside a virtual worker"), {"p": 8, "m": 16})
    assert _WAYS[way]["idle"] == f"{idle:.1%}".replace("%", " %")


@pytest.mark.parametrize("way", _RUN)
def test_idle_time_is_that_of_the_schedule_that_runs(way: str) -> None:
    schedule, micro_batches, chunks = _RUN[way]
    timeline = simulate([StageTime(1, 2, 0, 1)] * 8, micro_batches, schedule, chunks)
    idle = 1 - 3 * micro_batches / timeline.makespan_s
    assert _WAYS[way]["idle"] == f"{idle:.1%}".replace("%", " %")
