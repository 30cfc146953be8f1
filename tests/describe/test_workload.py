"""Workloads: ramps of the batch, and the steps that tokens take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.describe.layout import Layout
from planner.describe.workload import Workload, parse_ramp
from planner.errors import DescriptionError, LayoutError


@given(
    st.lists(
        st.tuples(st.integers(1, 5000), st.integers(1, 40)), max_size=4, unique_by=lambda p: p[1]
    ),
    st.integers(1, 12_000),
    st.integers(1, 60),
)
def test_steps_are_those_that_consume_the_tokens(
    pieces: list[tuple[int, int]], tokens: int, batch: int
) -> None:
    """Counted one by one, as Megatron-LM does."""
    length, bound, bounds = 10, 0, []
    for (more, _), size in zip(pieces, sorted(size for _, size in pieces), strict=True):
        bound += more
        bounds.append((bound, size))
    job = Workload(
        sequence_length=length,
        global_batch=batch,
        tokens=tokens,
        ramp=",".join(f"{bound}:{size}" for bound, size in bounds),
    )
    consumed = steps = 0
    while consumed < tokens:
        size = next((size for bound, size in bounds if consumed < bound), batch)
        consumed += size * length
        steps += 1
    assert job.steps == steps


@pytest.mark.parametrize(
    "ramp",
    ["768", "1B:0", "2B:16,1B:32", "1B:16,1B:32", "x:16", "1B:-3", "0:16", "1B:1.5", "1B:32,2B:16"],
)
def test_what_is_no_ramp_is_refused(ramp: str) -> None:
    with pytest.raises(DescriptionError, match="ramp = "):
        Workload.described({"ramp": ramp})


def test_a_ramp_is_kept_without_blanks() -> None:
    assert Workload(ramp="1B:16, 2B:32").ramp == "1B:16,2B:32"
    assert parse_ramp("") == ()


@pytest.mark.slow
def test_a_ramp_takes_longer_by_what_a_step_does_once() -> None:
    job = Workload(sequence_length=1024, global_batch=64, tokens=1e9)
    plain = planner.plan("gpt2-xl", "polaris", nodes=1, workload=job, frameworks=["megatron-lm"])
    ramped = planner.plan(
        "gpt2-xl",
        "polaris",
        nodes=1,
        workload=job.replaced(ramp="0.5B:32"),
        frameworks=["megatron-lm"],
    )
    best = plain.ranked[0]
    assert ramped.ranked[0] == best
    # half of the tokens in steps of half as many sequences
    once = ("pipeline_bubble", "gradient_reduction", "optimizer", "parameter_update_gathering")
    more = sum(best.step_time_parts_s[name] for name in once)
    steps = 0.5e9 / (32 * 1024)
    longer = ramped.duration_s(best) - plain.duration_s(best)
    assert longer == pytest.approx(steps * more / 2, rel=1e-3)
    assert ramped.node_hours(best) > plain.node_hours(best)


def test_a_ramp_leads_to_a_larger_batch() -> None:
    job = Workload(global_batch=64, sequence_length=512, tokens=2e9, ramp="1B:64")
    with pytest.raises(
        LayoutError, match="steps of 64 sequences, which must be less than global_batch = 64"
    ):
        planner.plan("gpt2", "laptop", nodes=1, workload=job)
    with pytest.raises(LayoutError, match="use smaller batches in the ramp"):
        planner.estimate("gpt2", "laptop", Layout(grad_accumulation=64), workload=job)
