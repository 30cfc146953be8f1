"""Search: complete, legal, sorted, deterministic, and nothing dropped silently."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from planner.choose.legality import check, legal
from planner.choose.planning import plan
from planner.choose.search import enumerate_layouts, rank_fastest, search
from planner.cost.estimate import estimate_layouts
from planner.cost.operators.backward import selective_frees_nothing
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_model
from planner.describe.layout import OFFLOAD, RECOMPUTE, SCHEDULES, V_SHAPED, Layout, divisors
from planner.describe.workload import Workload
from planner.errors import LayoutError
from tests import descriptions

FRAMEWORKS = ["ddp", "deepspeed", "fsdp2", "megatron-lm", "nanotron", "accelerate", "horovod"]

scenario = partial(descriptions.scenario, sequence_length=1024)


def brute_force(q: Scenario, world: int) -> set[Layout]:
    """Every layout that keeps all rules, without the variants search leaves out."""
    ways, batch, crossed = divisors(world), q.workload.global_batch, []
    experts = q.model.experts.num_experts if q.model.experts else 1
    axes = q.framework.axes
    whole = {"tp", "one"} <= set(q.framework.expert_tensor_parallel)
    for tp, pp, cp, ep, etp in itertools.product(
        ways if "tp" in axes else [1],
        ways if "pp" in axes else [1],
        ways if "cp" in axes else [1],
        divisors(experts) if "ep" in axes else [1],
        (0, 1),
    ):
        if etp and not (whole and tp > 1 and ep > 1):
            continue  # experts are whole anyway, or all on every rank
        if world % (tp * pp * cp):
            continue
        if cp > max(q.workload.sequence_length // 1024, 1):
            continue  # slices below 1024 tokens
        dp = world // (tp * pp * cp)
        for vpp, sequence, zero, micro, recompute, schedule, offload in itertools.product(
            range(1, q.model.num_layers // 2 + 1),
            (False, True),
            range(4),
            divisors(batch),
            RECOMPUTE,
            SCHEDULES,
            OFFLOAD,
        ):
            several = schedule == "interleaved-1f1b" or schedule in V_SHAPED
            if (vpp > 1) != several or (pp > 1) != (schedule != "none"):
                continue  # no schedule: refused by `check` as well, skipped here for speed
            chunks, layers = pp * vpp, q.model.num_layers
            if (
                vpp > 1
                and chunks <= layers
                and not are_worthwhile(layers, pp, vpp, batch // dp // micro)
            ):
                continue  # uneven chunks
            if schedule == "gpipe" and "1f1b" in q.framework.schedules:
                continue
            if q.framework.sequence_parallel == "by-default" and sequence != (tp > 1):
                continue
            if dp * cp == 1 and zero != min(q.framework.zero_stages) and offload == "none":
                continue  # sharding over one rank is none
            if batch % (dp * micro) or micro > 64:
                continue
            layout = Layout(
                dp=dp,
                tp=tp,
                pp=pp,
                cp=cp,
                ep=ep,
                etp=etp,
                vpp=vpp,
                sequence_parallel=sequence,
                zero_stage=zero,
                micro_batch=micro,
                grad_accumulation=batch // dp // micro,
                recompute=recompute,
                schedule=schedule,
                offload=offload,  # type: ignore[arg-type]
            )
            if recompute == "selective" and selective_frees_nothing(q):
                continue  # the same as none, and attention twice
            crossed.append(layout)
    keeps, _ = legal(q, Layouts.stack(crossed), set(Layout.model_fields))
    for layout, kept in itertools.islice(zip(crossed, keeps, strict=True), 0, None, 97):
        assert passes(q, layout) == kept
    return {layout for layout, kept in zip(crossed, keeps, strict=True) if kept}


def are_worthwhile(layers: int, pp: int, vpp: int, micro_batches: int) -> bool:
    """Whether chunks are even, or shorten a step in which only passes take time."""

    def step(count: int) -> int:
        return -(-layers // (pp * count)) * (micro_batches * count + pp - 1)

    is_even = -(-layers // (pp * vpp)) * pp * vpp <= 1.05 * layers
    return is_even or step(vpp) < min(map(step, range(1, vpp)))


def passes(q: Scenario, layout: Layout) -> bool:
    """Whether a user may run it."""
    try:
        check(q, layout)
    except LayoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("model", "framework", "world", "batch"),
    [
        ("gpt2", "ddp", 4, 8),
        ("gpt2", "deepspeed", 4, 4),
        pytest.param("gpt2", "megatron-lm", 4, 4, marks=pytest.mark.slow),
        ("gpt2", "fsdp2", 4, 4),
        ("gpt2", "nanotron", 4, 4),
        ("mixtral-8x7b", "megatron-lm", 2, 2),
    ],
)
def test_candidates_are_exactly_the_legal_layouts(
    model: str, framework: str, world: int, batch: int
) -> None:
    q = scenario(model, framework, global_batch=batch)
    layouts, _ = enumerate_layouts(q, world)
    found = [layouts[i] for i in range(len(layouts))]
    assert len(set(found)) == len(found)
    plain = {layout for layout in found if layout.dp_shard == 0}
    assert plain == brute_force(q, world)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("model", "world", "batch"),
    [("llama-3-8b", 16, 32), ("mixtral-8x7b", 12, 24), ("gpt2-xl", 8, 8)],
)
def test_every_candidate_is_legal_and_fills_the_world(
    model: str, framework: str, world: int, batch: int
) -> None:
    q = scenario(model, framework, global_batch=batch)
    layouts, dropped = enumerate_layouts(q, world)
    assert len(layouts) > 0
    assert np.all(layouts.world == world)
    assert np.all(layouts.global_batch == batch)
    assert all(count > 0 for count in dropped.values())
    for i in range(0, len(layouts), max(len(layouts) // 200, 1)):
        check(q, layouts[i])


def test_groups_of_every_size_are_tried() -> None:
    found = search(scenario("llama-3-8b", "fsdp2", global_batch=32), 16).footprints.layouts
    hybrid = found.dp_shard < found.dp
    assert set(found.dp_shard[hybrid & (found.dp == 16)].tolist()) == {2, 4, 8}
    assert np.all(found.zero_stage[hybrid] == 3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_order_is_sorted_and_fits(framework: str) -> None:
    found = search(scenario("gpt2-xl", framework, global_batch=32), 16)
    estimates = found.estimates
    ranked = rank_fastest(estimates)
    assert len(ranked) == len(estimates) == int(np.count_nonzero(found.footprints.fits))
    time = estimates.step_time_s[ranked]
    assert np.all(np.diff(time) >= -1e-9)
    assert rank_fastest(estimates, 7).tolist() == ranked[:7].tolist()
    assert rank_fastest(estimates, 0).tolist() == []
    with pytest.raises(LayoutError, match="must not be negative"):
        rank_fastest(estimates, -1)
    over = found.dropped.get("out of device memory", 0)
    assert over == int(np.count_nonzero(~found.footprints.fits_device))


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp2", "megatron-lm"])
def test_what_is_timed_later_is_what_is_estimated_at_once(framework: str) -> None:
    job = scenario("llama-2-13b", framework, global_batch=32)
    found = search(job, 16)
    every = estimate_layouts(job, found.footprints.layouts)
    at_once = every.take(np.flatnonzero(every.fits))
    assert 0 < len(found.estimates) < len(found.footprints)
    assert np.array_equal(found.estimates.step_time_s, at_once.step_time_s)
    assert np.array_equal(found.estimates.memory_bytes, at_once.memory_bytes)
    for index in range(0, len(at_once), 7):
        assert found.estimates[index] == at_once[index]


def test_order_does_not_depend_on_how_candidates_were_generated() -> None:
    estimates = search(scenario("gpt2-xl", global_batch=32), 16).estimates
    shuffled = np.random.default_rng(7).permutation(len(estimates))
    first = rank_fastest(estimates, 50)
    again = rank_fastest(estimates.take(shuffled), 50)
    assert [estimates[int(i)].layout for i in first] == [
        estimates[int(shuffled[i])].layout for i in again
    ]


@pytest.mark.slow
def test_two_runs_are_byte_identical() -> None:
    def once() -> str:
        job, ways = Workload(global_batch=64), ("fsdp2", "megatron-lm")
        return plan("llama-3-8b", "polaris", nodes=4, workload=job, frameworks=ways).to_json()

    assert once() == once()


def test_interleaving_goes_as_far_as_chunks_are_even() -> None:
    """To one layer a chunk; uneven ones only where an ideal step is shorter than with fewer."""
    for layers, longest in ((48, 24), (53, 27)):
        model = load_model("llama-3-8b").replaced(num_layers=layers)
        layouts, _ = enumerate_layouts(scenario(model, "megatron-lm", global_batch=64), 16)
        found = layouts.take(np.flatnonzero((layouts.pp == 2) & (layouts.vpp > 1)))
        even = {count for count in range(2, longest) if layers % (2 * count) == 0}
        assert even <= set(found.vpp.tolist())
        pairs = zip(found.vpp.tolist(), found.num_microbatches.tolist(), strict=True)
        assert all(are_worthwhile(layers, 2, *pair) for pair in set(pairs))


def test_a_v_is_searched_only_where_it_can_be_run() -> None:
    """Two chunks a stage, nothing repeated, weights not gathered again; no files, no candidate."""
    q = scenario("llama-3-8b", "fsdp2", global_batch=64)
    found, dropped = enumerate_layouts(q, 16)
    turned = found.take(np.flatnonzero(found.v_shaped))
    assert len(turned)
    assert set(turned.vpp.tolist()) == {2}
    assert not np.any(turned.recomputes_layers | turned.recomputes_selectively)
    assert not np.any(turned.shards_weights)
    # as many or as few micro-batches as there are
    assert np.any(turned.grad_accumulation % turned.pp)
    assert dropped["schedule does not support recompute or ZeRO stage"] > len(turned)
    written = replace(q, framework=q.framework.limit_to_files(q.model, q.workload))
    assert not np.any(enumerate_layouts(written, 16)[0].v_shaped)
    assert not np.any(
        enumerate_layouts(replace(q, framework=load_framework("nanotron")), 16)[0].v_shaped
    )


def test_nothing_legal_is_a_result() -> None:
    # a prime global batch below the number of ranks
    found = search(scenario("gpt2", "ddp", global_batch=3), 16)
    assert len(found.estimates) == 0
    assert rank_fastest(found.estimates).tolist() == []
    assert found.dropped["global batch is not a multiple of dp"] > 0


def test_every_ranked_layout_passes_check() -> None:
    workload = Workload(global_batch=64, sequence_length=1024)
    answer = plan("gpt2-xl", "polaris", nodes=4, workload=workload)
    ideas = {
        (e.framework, e.layout.tp, e.layout.pp, e.layout.cp, e.layout.zero_stage, e.layout.offload)
        for e in answer.ranked
        if e.layout.dp_shard == 0
    }
    assert len(ideas) == sum(e.layout.dp_shard == 0 for e in answer.ranked) >= 10
    for estimate in answer.ranked:
        check(scenario("gpt2-xl", estimate.framework), estimate.layout)
        assert estimate.fits
