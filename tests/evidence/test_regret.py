"""Regret of a choice among measured layouts: its arithmetic, and jobs of the measured tables."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

from planner.choose.search import Candidates
from planner.cost.estimate import Estimate
from planner.describe.layout import Layout
from tests import ROOT
from tests.descriptions import scenario

FAST, MIDDLE, SLOW, FAILED = (
    Layout(dp=8, grad_accumulation=8 // m, micro_batch=m) for m in (1, 2, 4, 8)
)
TIMES_S = {FAST: 2.0, MIDDLE: 3.0, SLOW: 7.0, FAILED: None}


@pytest.fixture
def regret(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("regret")


def job_of(regret: ModuleType, times_s: dict[Layout, float | None], name: str = "made up"):
    gpt = scenario("gpt2", "ddp", global_batch=64, sequence_length=256)
    return regret.Job(name, "ddp", regret.candidates_of(gpt, times_s), times_s)


def in_order(*wanted: Layout):
    """A rule that chooses the first of these that is still a candidate, else nothing."""

    def rule(candidates: Candidates) -> Estimate | None:
        estimates = candidates.estimates
        places = {estimates.layouts[i]: i for i in range(len(estimates))}
        return next((estimates[places[one]] for one in wanted if one in places), None)

    return rule


def test_candidates_are_the_layouts_that_were_tried(regret: ModuleType) -> None:
    candidates = job_of(regret, TIMES_S).candidates
    layouts = candidates.estimates.layouts
    assert {layouts[i] for i in range(len(layouts))} == set(TIMES_S)


def test_regret_is_measured_time_over_the_least_measured(regret: ModuleType) -> None:
    job = job_of(regret, TIMES_S)
    regrets = [regret.choose(job, in_order(one)).regret for one in (FAST, MIDDLE, SLOW)]
    assert regrets == pytest.approx([0.0, 0.5, 2.5])


def test_what_failed_costs_a_try_and_the_next_choice_counts(regret: ModuleType) -> None:
    job = job_of(regret, TIMES_S)
    choice = regret.choose(job, in_order(FAILED, MIDDLE))
    assert (choice.num_failed, choice.estimate.layout) == (1, MIDDLE)
    assert choice.regret == pytest.approx(0.5)
    nothing = regret.choose(job, in_order(FAILED))
    assert (nothing.num_failed, nothing.estimate, nothing.regret) == (1, None, None)


def test_figures_of_several_jobs(regret: ModuleType) -> None:
    times_s = {FAST: 4.0, MIDDLE: 2.0, SLOW: 2.0, FAILED: 8.0}
    jobs = [job_of(regret, TIMES_S), job_of(regret, times_s, "another")]
    # regrets 0 % and 100 %
    cells = regret.rule_cells(jobs, in_order(FAST)).split(" | ")
    assert cells == ["2", "50.0 %", "50.0 %", "100.0 %", "0", "0", "0"]
    # the failed one first: then 50 % of the first job, 300 % of the second
    cells = regret.rule_cells(jobs, in_order(FAILED, MIDDLE)).split(" | ")
    assert cells == ["2", "175.0 %", "175.0 %", "300.0 %", "1", "1", "0"]
    # one job has no answer
    cells = regret.rule_cells(jobs, in_order(FAILED)).split(" | ")
    assert cells == ["2", "300.0 %", "300.0 %", "300.0 %", "1", "1", "1"]
    # mean of 2, 3 and 7 s over 2 s; one of four fails, so that a quarter of a try is lost
    cells = regret.random_cells(jobs[:1]).split(" | ")
    assert cells == ["1", "100.0 %", "100.0 %", "100.0 %", "0.2", "0.2", "0"]


def test_the_report_names_the_choice_and_the_best(regret: ModuleType) -> None:
    lines = regret.report([job_of(regret, TIMES_S)], {"mine": in_order(MIDDLE)})
    assert lines[2].startswith("| all | mine | 1 | 50.0 % |")
    cells = lines[-1].split(" | ")
    assert cells[1:4] == ["4, 3", "0", "50.0 %"]
    assert (cells[4], cells[6]) == (str(MIDDLE), str(FAST))
    assert cells[5].endswith(", 3 s")
    assert cells[7] == f"{cells[7].split(', ')[0]}, 2 s |"


def test_rows_of_the_measured_table(regret: ModuleType, tmp_path: Path) -> None:
    folder = os.environ.get("PLANNER_DATA")
    path = (Path(folder) if folder else ROOT.parent / "shared" / "data") / "ultrascale.csv"
    if not path.is_file():
        pytest.skip(f"measured runs are not here: {path} is missing; set PLANNER_DATA")
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    table = tmp_path / "rows.csv"
    # the model of 8 B on one node
    table.write_text("\n".join([header, *(x for x in rows if ",80,8,8,,8B," in x)]))
    (job,) = regret.jobs_of(regret.measured_runs(table))
    assert (len(job.times_s), len(job.ran_s), job.seen) == (60, 13, False)
    # measured memory tells the build elsewhere; a choice must not know it
    assert not job.candidates.scenario.framework.kernels.saves_gathered
    for rule in regret.RULES.values():
        choice = regret.choose(job, rule)
        assert choice.regret >= 0
        assert choice.estimate.layout in job.times_s
    # one model, though the table tells its piped runs to be untied
    table.write_text("\n".join([header, *(x for x in rows if ",80,8,8,,1B," in x)]))
    (job,) = regret.jobs_of(regret.measured_runs(table))
    assert job.seen
    assert job.candidates.scenario.model.tied_embeddings
    assert {layout.pp > 1 for layout in job.times_s} == {True, False}
