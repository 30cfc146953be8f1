"""Why: the rule, its source and the smallest change for a layout that is not recommended."""

from typing import Unpack

from planner.ask.answer import Row
from planner.ask.plan_point import estimate_row
from planner.ask.question import Findings, JobFields, question
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.planning import plan_job
from planner.choose.verdicts.answer_lines import closest_strategy, fastest_gain
from planner.choose.verdicts.layout_words import parse_layout
from planner.choose.verdicts.why_not import why_not
from planner.describe.layout import Layout


@question
def why(job: JobSpec, *, nodes: int = 1, layout: str = "", **_: Unpack[JobFields]) -> Findings:
    """Say why a layout is not recommended: the rule, its source, and the cheapest change.

    Write any part of a layout in the code of the tables, in any order. Axes that are left out are 1
    and nothing is offloaded, if a degree or a ZeRO stage is stated; the search chooses the rest.
    Without a layout, rows are all ranked layouts that are faster than the recommended one.
    """
    job = job.replaced(nodes=nodes)
    plan = plan_job(job)
    if layout.strip():
        answer = why_not(job, plan, parse_layout(layout))
        verdict, best = answer.lines[0].text, answer.recommended
        fits = answer.estimate is not None and answer.estimate.fits
        pairs = [(answer.estimate, answer.reason), (answer.changed, "the cheapest change")]
        notes = [f"{line.label}: {line.text}" for line in answer.lines[1:]]
    else:
        fits, best, pairs, notes = plan.fits, plan.recommended, list(plan.passed_over), []
        verdict = fastest_gain(plan) or f"Nothing fits. {closest_strategy(plan)}"
    rows: dict[tuple[Layout, str], Row] = {}
    for estimate, reason in (*pairs, (best, "recommended")):
        if estimate is not None:
            row = rows.setdefault((estimate.layout, estimate.framework), estimate_row(estimate))
            row["reason"] = "; ".join(filter(None, (row.get("reason"), reason)))
    return Findings(verdict, list(rows.values()), notes, success=fits)
