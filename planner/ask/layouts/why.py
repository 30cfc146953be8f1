"""Why: the rule, its source and the smallest change for a layout that is not recommended."""

from __future__ import annotations

from typing import Unpack

from planner.ask.plan_point import estimate_row
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.planning import plan_job
from planner.choose.verdicts.answer_lines import fastest_gain
from planner.choose.verdicts.layout_words import parse_layout
from planner.choose.verdicts.why_not import why_not


@question
def why(job: JobSpec, *, nodes: int = 1, layout: str = "", **_: Unpack[JobFields]) -> Findings:
    """Say why a layout is not recommended: the rule, its source, and the smallest change.

    Write the layout in the code of the tables, in any order; what is left out is chosen as the
    search would. Without a layout, rows are all ranked layouts that are faster than the recommended
    one.
    """
    job = job.replaced(nodes=nodes)
    plan = plan_job(job)
    if layout.strip():
        answer = why_not(job, plan, parse_layout(layout))
        verdict = f"The layout {answer.lines[0].text}"
        best = answer.recommended
        fits = answer.estimate is not None and answer.estimate.fits
        pairs = ((answer.estimate, answer.reason), (answer.changed, answer.change))
        rows = [estimate_row(e) | {"reason": text} for e, text in pairs if e and text]
        notes = [f"{line.label}: {line.text}" for line in answer.lines[1:]]
    else:
        fits, best, notes = plan.fits, plan.recommended, []
        rows = [estimate_row(each) | {"reason": reason} for each, reason in plan.passed_over]
        verdict = fastest_gain(plan) or f"Nothing fits: {plan.why}."
    if best is not None:
        rows.append(estimate_row(best) | {"reason": "recommended"})
    return Findings(verdict, rows, notes, success=fits)
