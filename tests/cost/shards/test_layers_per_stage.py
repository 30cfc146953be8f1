"""Pipeline: layers per stage, micro-batches in flight, and the bubble, against a simulation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.estimate import estimate_layouts
from planner.cost.memory.footprint import stage_memory
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.schedules.bubble import chunks_in_flight, in_flight, schedule_by_name
from planner.cost.schedules.simulate import StageTime
from planner.cost.shards.candidate_stages import candidate_stages
from planner.cost.shards.layers_per_stage import (
    LayerSplit,
    chunk_counts,
    layer_split,
    layers_on_stage,
)
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.partial_recompute import stage_block_counts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.layout import SCHEDULES, Layout
from planner.describe.workload import Workload
from tests.cost.schedules import length_s
from tests.descriptions import scenario

Pass = tuple[str, int, int]


def order(schedule: str, p: int, v: int, m: int, stage: int) -> list[Pass]:
    """The passes of a stage in their order: (direction, micro-batch, chunk)."""
    if v == 1:
        ahead = [("F", i, 0) for i in range(m)]
        back = [("B", i, 0) for i in range(m)]
        warm_up = m if schedule == "gpipe" else min(m, p - stage - 1)
    else:
        # Narayanan et al. 2021, figure 4: groups of p micro-batches, one chunk after the other
        turns = [(g + i, c) for g in range(0, m, p) for c in range(v) for i in range(p)]
        ahead = [("F", i, c) for i, c in turns]
        back = [("B", i, v - 1 - c) for i, c in turns]
        warm_up = m * v if m == p else min(2 * (p - stage - 1) + (v - 1) * p, m * v)
    passes = ahead[:warm_up]
    for forward, backward in zip(ahead[warm_up:], back, strict=False):
        passes += [forward, backward]
    return passes + back[m * v - warm_up :]


def simulate(
    schedule: str, p: int, v: int, m: int, forward_s: float, backward_s: float
) -> tuple[float, list[int]]:
    """Length of one step, and the most chunks in flight per stage, event by event."""
    orders = [order(schedule, p, v, m, stage) for stage in range(p)]
    done: dict[tuple[str, int, int, int], float] = {}
    now, at = [0.0] * p, [0] * p
    held, most = [0] * p, [0] * p

    def ready(stage: int, work: Pass) -> float | None:
        kind, i, chunk = work
        place = chunk * p + stage  # position along the model
        if kind == "F":
            source = ("F", i, place - 1)
        else:
            source = ("B", i, place + 1) if place < p * v - 1 else ("F", i, place)
        return 0.0 if source[2] < 0 else done.get((*source, 0))

    while any(at[s] < len(orders[s]) for s in range(p)):
        moved = False
        for s in range(p):
            while at[s] < len(orders[s]) and (start := ready(s, orders[s][at[s]])) is not None:
                kind, i, chunk = orders[s][at[s]]
                now[s] = max(now[s], start) + (forward_s if kind == "F" else backward_s) / v
                done[(kind, i, chunk * p + s, 0)] = now[s]
                held[s] += 1 if kind == "F" else -1
                most[s] = max(most[s], held[s])
                at[s], moved = at[s] + 1, True
        assert moved, "deadlock"
    return max(now), most


def bubble(schedule: str, p: int, v: int, m: int, total_s: float = 3.0) -> float:
    """Of equal stages; a third each of forward, input gradients and weight gradients."""
    time = StageTime(total_s / 3, 2 * total_s / 3, 0.0, total_s / 3)
    return length_s(schedule, m, v, [time] * p) - m * total_s


def layouts_of(schedule: str, p: int, v: int, m: int) -> Layouts:
    return Layouts.of(Layout(pp=p, vpp=v, grad_accumulation=m, schedule=schedule))  # type: ignore[arg-type]


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b"]),
    st.integers(2, 6),
    st.integers(2, 4),
    st.integers(1, 4),
    st.floats(0.1, 5),
    st.floats(0.1, 5),
)
def test_simulation_equals_closed_form(
    schedule: str, p: int, chunks: int, groups: int, forward: float, backward: float
) -> None:
    v = chunks if schedule == "interleaved-1f1b" else 1
    m = groups * p
    length, _ = simulate(schedule, p, v, m, forward, backward)
    assert length == pytest.approx(length_s(schedule, m, v, [StageTime(forward, backward)] * p))


@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(2, 6), st.integers(1, 20))
def test_simulated_micro_batches_in_flight(schedule: str, p: int, m: int) -> None:
    _, most = simulate(schedule, p, 1, m, 1.0, 2.0)
    assert in_flight(layouts_of(schedule, p, 1, m), np.arange(p)).tolist() == most


@given(st.integers(2, 6), st.integers(2, 4), st.integers(2, 4))
def test_simulated_chunks_in_flight(p: int, v: int, groups: int) -> None:
    m = groups * p
    _, most = simulate("interleaved-1f1b", p, v, m, 1.0, 2.0)
    held = in_flight(layouts_of("interleaved-1f1b", p, v, m), np.arange(p))
    assert held * v == pytest.approx(np.array(most, dtype=float))


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4), st.data())
def test_chunks_in_flight_are_those_of_the_order(p: int, v: int, groups: int, data: Any) -> None:
    """Chunks of unlike length: no moment of the schedule's order holds more layers."""
    m, stage = groups * p, data.draw(st.integers(0, p - 1))
    layers = np.array(data.draw(st.lists(st.integers(0, 5), min_size=v, max_size=v)), dtype=float)
    alive, most = np.zeros(v), 0.0
    for task in schedule_by_name("interleaved-1f1b").order(p, stage, m, v):
        alive[task.chunk] += 1 if task.kind == "forward" else -1
        most = max(most, float(alive @ layers))
    layouts = layouts_of("interleaved-1f1b", p, v, m)
    held = chunks_in_flight(layouts, stage, layers)
    assert float(held @ layers) == most
    assert held.sum() == pytest.approx(float(in_flight(layouts, stage)) * v)
    assert max(held) <= m


def test_fewer_chunks_beside_more() -> None:
    """Layouts of one and of three chunks in one array: what is not there holds nothing."""
    both = Layouts.broadcast(pp=2, vpp=[1, 3], grad_accumulation=4, schedule=[2, 3])
    held = chunks_in_flight(both, 0, np.array([[6.0, 2.0], [0.0, 2.0], [0.0, 2.0]]))
    assert held[:, 0].tolist() == [2.0, 0.0, 0.0]
    assert held[:, 1].sum() == 2 * 1 + 2 * 2 + 1


@pytest.mark.parametrize(("p", "m"), [(2, 4), (8, 64), (64, 512)])
def test_bubble_fraction(p: int, m: int) -> None:
    # Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1: (p - 1)/m of the ideal time
    assert bubble("1f1b", p, 1, m) / (m * 3.0) == pytest.approx((p - 1) / m)


@pytest.mark.parametrize("v", [2, 3, 6])
def test_interleaving_divides_the_bubble(v: int) -> None:
    # section 2.2.2: (p - 1)/(m v)
    assert bubble("interleaved-1f1b", 8, v, 64) / (64 * 3.0) == pytest.approx(7 / 64 / v)


def test_zero_bubble_fills_with_weight_gradients() -> None:
    # Qi et al. 2023, arXiv:2401.10241, table 1: H1 idles (p - 1)(t_f + t_b - t_w), with t_b the
    # input gradient alone; forward 1, input gradient 1, weight gradient 1 leave (p - 1)
    assert bubble("zero-bubble", 4, 1, 8) == pytest.approx(3.0)


@pytest.mark.parametrize(("p", "v", "m"), [(8, 3, 64), (4, 2, 16), (35, 3, 280)])
def test_interleaved_memory(p: int, v: int, m: int) -> None:
    # Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3: the first stage holds
    # p (1 + (p - 1)/(p v)) micro-batches
    held = in_flight(layouts_of("interleaved-1f1b", p, v, m), 0)
    assert float(held) == pytest.approx(p * (1 + (p - 1) / (p * v)))


def test_no_pipeline_holds_one() -> None:
    assert float(in_flight(Layouts.of(Layout(grad_accumulation=64)), 0)) == 1
    assert bubble("none", 1, 1, 64) == 0


_ENDS = [
    LayerSplit(),
    LayerSplit(1, 1),
    LayerSplit(0, 0.7, by_cost=True),
    LayerSplit(0, 4.0, by_cost=True),
]


@given(st.integers(1, 130), st.data(), st.sampled_from(_ENDS))
def test_layers_are_all_dealt_in_order(layers: int, data: st.DataObject, ends: LayerSplit) -> None:
    pp = data.draw(st.integers(1, layers))
    start, count = layers_on_stage(layers, pp, np.arange(pp), ends)
    assert count.sum() == layers
    assert np.all(count >= 0)
    assert start.tolist() == [0, *np.cumsum(count)[:-1]]
    if ends == LayerSplit():
        assert count.max() - count.min() <= 1


def test_ends_as_layers_is_the_rule_of_torchtitan() -> None:
    # pytorch/torchtitan, generate_llm_fqn_per_model_part: 32 + 2 over 4 stages is 9, 9, 8, 8 with
    # embedding and head counted
    _, count = layers_on_stage(32, 4, np.arange(4), LayerSplit(1, 1))
    assert count.tolist() == [8, 9, 8, 7]


def test_dealt_by_cost_a_stage_ends_with_the_layer_that_passes_its_share() -> None:
    # huggingface/nanotron build_model: the next stage begins once the cumulative cost exceeds the
    # share; 16 layers and a head as large as 4 give shares of 2.5, 5, ... 17.5
    _, count = layers_on_stage(16, 8, np.arange(8), LayerSplit(0, 4.0, by_cost=True))
    assert count.tolist() == [3, 3, 2, 3, 2, 3, 0, 0]
    # a share met exactly is not yet exceeded: 11 layers, not 10, before 20 / 2
    assert layers_on_stage(16, 2, 0, LayerSplit(0, 4.0, by_cost=True))[1] == 11


def test_interleaved_experts_are_spread_over_the_stages() -> None:
    """Llama 4 Maverick: experts in every other layer, chunks in three of four."""
    scout = load_model("llama-4-scout")
    assert scout.experts is not None
    experts = scout.experts.replaced(num_dense_layers=24, interleaved=True)
    maverick = scout.replaced(experts=experts)
    framework = load_framework("megatron-lm")
    blocks = blocks_of(scenario(maverick, "megatron-lm"))
    names = [block.name for block in blocks[1:-1]]
    assert names == ["dense layer (window)", "expert layer (window)", "expert layer"]
    for pp in (2, 4, 12):
        layouts = Layouts.of(Layout(pp=pp, dp=1))
        for stage in range(pp):
            counts = stage_block_counts(blocks, layouts, stage, framework)[1:-1]
            assert [int(n) for n in counts] == [24 // pp, 12 // pp, 12 // pp]
    # one layer a stage, in the model's own order: transformers 5.23, Llama4TextConfig
    layouts = Layouts.of(Layout(pp=48, dp=1))
    kinds = [
        [int(n) for n in stage_block_counts(blocks, layouts, stage, framework)[1:-1]].index(1)
        for stage in range(48)
    ]
    assert kinds == [0, 1, 0, 2] * 12


@pytest.mark.parametrize("name", ["llama-3-8b", "deepseek-v3", "gemma-2-27b", "mixtral-8x7b"])
@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2", "nanotron"])
def test_stages_hold_the_whole_model_once(name: str, framework: str) -> None:
    scenario = Scenario(
        load_model(name), load_machine("polaris"), Workload(), load_framework(framework)
    )
    blocks = blocks_of(scenario)
    layouts = Layouts.broadcast(pp=[1, 2, 4, 7, 16])
    counts = stage_block_counts(
        blocks, layouts.take((..., None)), np.arange(16), scenario.framework
    )
    for block, count in zip(blocks, counts, strict=True):
        inside = np.arange(16) < layouts.pp[:, None]
        assert np.where(inside, count, 0).sum(axis=1).tolist() == [block.count] * 5


def test_candidate_stages_include_where_the_kind_of_layer_changes() -> None:
    # DeepSeek-V3: 3 dense layers, then 58 expert layers
    scenario = Scenario(
        load_model("deepseek-v3"),
        load_machine("polaris"),
        Workload(),
        load_framework("megatron-lm"),
    )
    layouts = Layouts.broadcast(
        pp=[1, 61, 8], schedule=SCHEDULES.index("1f1b"), grad_accumulation=61
    )
    stages = candidate_stages(blocks_of(scenario), layouts, scenario.framework)
    assert sorted(set(stages[0])) == [0]
    assert {0, 3, 60} == set(stages[1])
    assert {0, 1, 7} == set(stages[2])


# --- dealt as users say -----------------------------------------------------------------------

_TOLD: list[dict[str, Any]] = [
    {"pp": 16, "vpp": 8, "embedding_slots": 1, "head_slots": 1},
    {"pp": 8, "embedding_slots": 2, "head_slots": 3},
    {"pp": 4, "first_layers": 20, "last_layers": 41},
    {"pp": 4, "vpp": 2, "first_layers": 10},
    {"pp": 3, "split": "100,0,26"},
    {"pp": 2, "vpp": 2, "split": "10,60,6,50"},
    {"pp": 2, "vpp": 2, "schedule": "zero-bubble-v", "split": "10,60,6,50"},
]


def _told(fields: dict[str, Any]) -> Layout:
    usual = "interleaved-1f1b" if fields.get("vpp", 1) > 1 else "1f1b"
    return Layout(**{"schedule": usual, **fields})


def _chunks(layers: int, layout: Layout) -> list[int]:
    chunks = layout.pp * layout.vpp
    deal = layer_split(layers, layout)
    return [int(layers_on_stage(layers, chunks, chunk, deal)[1]) for chunk in range(chunks)]


def test_llama_3_has_a_slot_for_either_end() -> None:
    # arXiv:2407.21783, section 3.3.2: one layer less on the first and the last stage, so that the
    # first chunk has the embedding alone and the last one the head; 126 + 2 over 16 * 8
    layout = _told(_TOLD[0])
    assert _chunks(126, layout) == [0, *[1] * 126, 0]
    # 15 / 128 of the work: (p - 1) / (m v) with as many micro-batches as stages
    assert bubble("interleaved-1f1b", 16, 8, 16) / 48 == pytest.approx(15 / 128)


@pytest.mark.parametrize(
    ("layers", "fields", "expected"),
    [
        # Megatron-LM @d98e8a64, transformer_block.py: get_num_layers_to_build of these options;
        # Qwen3-235B-A22B of Megatron-Bridge has 94 + 2 slots on 16 stages
        (94, {"pp": 16, "embedding_slots": 1, "head_slots": 1}, [5, *[6] * 14, 5]),
        (30, {"pp": 4, "vpp": 2, "embedding_slots": 1, "head_slots": 1}, [3, *[4] * 6, 3]),
        (62, {"pp": 4, "first_layers": 16, "last_layers": 14}, [16, 16, 16, 14]),
        (28, {"pp": 4, "vpp": 2, "first_layers": 4, "last_layers": 8}, [2, 4, 4, 4] * 2),
    ],
)
def test_stages_are_those_of_megatron(
    layers: int, fields: dict[str, Any], expected: list[int]
) -> None:
    assert _chunks(layers, _told(fields)) == expected


@pytest.mark.parametrize("fields", _TOLD, ids=str)
@pytest.mark.parametrize("framework", ["megatron-lm", "fsdp2"])
def test_told_stages_hold_the_whole_model_once(fields: dict[str, Any], framework: str) -> None:
    """Stage by stage, and chunk by chunk; beside layouts of which nothing is told."""
    scenario = Scenario(
        load_model("llama-3.1-405b"), load_machine("polaris"), Workload(), load_framework(framework)
    )
    blocks, layout = blocks_of(scenario), _told(fields)
    layouts = Layouts.stack([layout, Layout(pp=layout.pp, schedule="1f1b")])
    stages = np.arange(layout.pp)
    counts = stage_block_counts(blocks, layouts.take((..., None)), stages, scenario.framework)
    for block, count in zip(blocks, counts, strict=True):
        assert count.sum(axis=1).tolist() == [block.count] * 2
    one = layouts.take(np.zeros(layout.pp, dtype=np.int64))
    chunks = chunk_counts(blocks, one, stages, scenario.framework)
    for whole, parts in zip(counts, chunks, strict=True):
        assert parts.sum(axis=0).tolist() == whole[0].tolist()
    plain = stage_block_counts(blocks, layouts.take((1, None)), stages, scenario.framework)
    assert [count.tolist() for count in plain] == [count[1].tolist() for count in counts]


@pytest.mark.parametrize("fields", _TOLD, ids=str)
def test_candidates_hold_the_worst_of_told_stages(fields: dict[str, Any]) -> None:
    scenario = Scenario(
        load_model("llama-3.1-405b"),
        load_machine("h100-cluster"),
        Workload(sequence_length=4096),
        load_framework("megatron-lm"),
    )
    layout = _told(fields).replaced(tp=8, grad_accumulation=16)
    assert float(estimate_layouts(scenario, Layouts.of(layout)).memory_bytes) == pytest.approx(
        max(sum(stage.values()) for stage in stage_memory(scenario, layout))
    )
