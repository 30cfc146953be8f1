"""Promising: bounds spare estimates and change no answer."""

from __future__ import annotations

import sys

import pytest

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.planning import plan
from planner.choose.search import Candidates, SearchScope, enumerate_layouts, search
from planner.choose.search.recommendation import rank_layouts, recommend
from planner.choose.verdicts.strategy_verdicts import judge_strategies
from planner.cost.estimate import Estimate
from planner.describe.workload import Workload
from tests import descriptions
from tests.descriptions import searched

JOBS = {
    # model, machine, nodes, sequence, batch
    "dense": ("llama-3-8b", "polaris", 16, 8192, 256),
    "larger": ("llama-3.1-70b", "polaris", 64, 8192, 1024),
    "odd": ("llama-3-8b", "polaris", 3, 4096, 96),
    "offload": ("mistral-7b", "vsc-5", 2, 4096, 64),
    "experts": ("mixtral-8x7b", "dgx-a100", 16, 4096, 1024),
    "many experts": ("gpt-oss-120b", "polaris", 16, 4096, 256),
    "long": ("llama-3.1-8b", "aurora", 32, 131072, 32),
    "wide": ("llama-3.1-405b", "aurora", 10000, 8192, 120000),
    "nothing fits": ("llama-3.1-405b", "vsc-5", 4, 4096, 64),
}


def found_of(
    name: str, few: int, recommended_only: bool = False
) -> tuple[dict[str, Candidates], JobSpec]:
    model, machine, nodes, tokens, batch = JOBS[name]
    workload = Workload(sequence_length=tokens, global_batch=batch)
    job = JobSpec(model, machine, nodes=nodes, workload=workload)
    scope = SearchScope(few, recommended_only=recommended_only)
    return searched(job.model, job.machine, nodes, workload, scope=scope), job


def _count(found: dict[str, Candidates]) -> int:
    """Number of layouts that were estimated."""
    return sum(len(part.footprints) for part in found.values())


def said(one: Estimate | None) -> tuple[str, str] | None:
    return None if one is None else (one.framework, str(one.layout))


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("dense", "offload") else pytest.param(name, marks=pytest.mark.slow)
        for name in JOBS
    ],
)
def test_bounds_change_no_answer(name: str) -> None:
    (all_found, job), (found, _) = found_of(name, sys.maxsize), found_of(name, 0)
    narrow, _ = found_of(name, 0, recommended_only=True)
    best = said(recommend(all_found.values()))
    assert said(recommend(found.values())) == said(recommend(narrow.values())) == best
    if best is not None:
        assert _count(narrow) < _count(found) < _count(all_found)
    listed = [said(one) for one in rank_layouts(found.values(), 20)]
    assert listed == [said(one) for one in rank_layouts(all_found.values(), 20)]
    fates = zip(judge_strategies(job, found), judge_strategies(job, all_found), strict=True)
    for mine, theirs in fates:
        assert (mine.name, mine.fits) == (theirs.name, theirs.fits)
        if mine.fits:
            assert said(mine.estimate) == said(theirs.estimate)


@pytest.mark.slow
def test_every_candidate_is_decided_once() -> None:
    asked = descriptions.scenario("mixtral-8x7b", "megatron-lm", "dgx-a100", global_batch=512)
    layouts, fell = enumerate_layouts(asked, 128)
    found, everything = (
        search(asked, 128, scope=SearchScope(0)),
        search(asked, 128, scope=SearchScope(sys.maxsize)),
    )
    tried = len(everything.footprints)
    assert len(layouts) <= found.num_decided <= everything.num_decided == tried
    assert len(found.footprints) < 0.6 * tried
    assert found.dropped.keys() >= fell.keys()
    spared = found.dropped["slower than another of its class by a lower bound"]
    exceeded = found.dropped["out of device memory"]
    host = found.dropped.get("out of host memory", 0)
    assert found.num_decided - spared - exceeded - host == len(found.estimates)
    kept = [str(found.estimates.layouts[i]) for i in range(0, len(found.estimates), 97)]
    known = {str(everything.estimates.layouts[i]) for i in range(len(everything.estimates))}
    assert set(kept) <= known


def test_a_plan_says_how_many_were_estimated() -> None:
    job = Workload(sequence_length=1024, global_batch=64)
    answer = plan("gpt2", "polaris", nodes=1, workload=job)
    assert answer.num_estimated == answer.num_candidates
    assert type(answer).from_json(answer.to_json()) == answer
