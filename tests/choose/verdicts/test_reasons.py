"""Reasons: every faster layout of a plan is passed over for a stated reason."""

from __future__ import annotations

import random

import pytest

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.plan import Plan
from planner.choose.planning import plan_job
from planner.choose.preferences import preferences
from planner.choose.verdicts.answer_lines import fastest_gain, format_seconds
from planner.choose.verdicts.layout_words import layout_words
from planner.choose.verdicts.reasons import Contender, causes_against, reason_against
from planner.describe.workload import Workload

# dozens of plans
pytestmark = pytest.mark.slow
_MODELS = ("gpt2", "llama-3-8b", "mistral-7b", "mixtral-8x7b", "llama-2-13b")
_MACHINES = ("polaris", "dgx-h100", "aurora", "frontier", "perlmutter")


def random_jobs(count: int) -> list[JobSpec]:
    draw = random.Random(29)
    return [
        JobSpec(
            draw.choice(_MODELS),
            draw.choice(_MACHINES),
            nodes=draw.choice((1, 2, 4, 6)),
            workload=Workload(
                sequence_length=draw.choice((512, 1024)),
                global_batch=draw.choice((48, 64, 96, 128)),
            ),
            exact=True,
        )
        for _ in range(count)
    ]


def test_every_faster_layout_has_a_reason_that_decides() -> None:
    num_faster = 0
    for job in random_jobs(24):
        plan = plan_job(job)
        best = plan.recommended
        if best is None:
            assert plan.reasons == ()
            continue
        faster = [each for each in plan.ranked if each.step_time_s < best.step_time_s]
        assert [each for each, _ in plan.passed_over] == faster
        num_faster += len(faster)
        chosen = Contender(job.scenario_of(best), best)
        for each, reason in plan.passed_over:
            pair = Contender(job.scenario_of(each), each), chosen
            assert reason
            assert reason == reason_against(*pair)
            # without the stated causes the layout would come first, so that they decide
            causes = causes_against(*pair)
            assert not pair[0].comes_before(chosen, job.tolerance)
            ignored = [*causes, "effort", "spread"]
            assert pair[0].comes_before(chosen, job.tolerance, without=ignored), (job, reason)
        _check_sentence(plan, faster)
    assert num_faster > 24


def _check_sentence(plan: Plan, faster: list) -> None:  # type: ignore[type-arg]
    """A layout that is faster and as safe is named with its reason."""
    best = plan.recommended
    assert best is not None
    text = fastest_gain(plan)
    risk = max(preferences().risk, best.out_of_memory_probability)
    safe = [each for each in faster if each.out_of_memory_probability <= risk]
    if not safe or 1 - safe[0].step_time_s / best.step_time_s < 0.005:
        return
    reason = dict((str(e.layout) + e.framework, why) for e, why in plan.passed_over)
    assert format_seconds(safe[0].step_time_s) in text
    assert reason[str(safe[0].layout) + safe[0].framework] in text


def test_the_answer_for_a_large_job_names_the_safe_layout_that_is_faster() -> None:
    workload = Workload(sequence_length=8192, global_batch=2048)
    plan = plan_job(JobSpec("llama-3.1-405b", "aurora", nodes=1024, workload=workload, exact=True))
    text = fastest_gain(plan)
    passed = next(each for each, _ in plan.passed_over if each.out_of_memory_probability < 0.05)
    assert passed.layout.cp == 4
    assert f"fsdp2, {layout_words(passed.layout, brief=True)}; but slices of 2,048 tokens" in text


def test_reasons_are_read_back() -> None:
    plan = plan_job(
        JobSpec(
            "gpt2", "polaris", nodes=2, workload=Workload(global_batch=64, sequence_length=1024)
        )
    )
    again = Plan.from_json(plan.to_json())
    assert again.reasons == plan.reasons
    assert again.reason == plan.reason
