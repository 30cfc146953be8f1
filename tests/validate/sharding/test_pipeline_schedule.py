"""The orders of the planner's schedules beside those that torch's own schedules make."""

from __future__ import annotations

import pytest

from planner.cost.schedules.bubble import REGISTRY
from planner.describe.layout import Layout

pytest.importorskip("torch")

_KINDS = {
    "FORWARD": "forward",
    "BACKWARD_INPUT": "backward",
    "FULL_BACKWARD": "backward",
    "BACKWARD_WEIGHT": "weight_gradient",
}


def _of_torch(name: str, p: int, stage: int, m: int, v: int) -> list[tuple[str, int, int]]:
    """What torch's schedule has a rank do: kind, micro-batch, chunk by its place in the model."""
    from planner.validate.sharding.passes import SCHEDULES

    kind = SCHEDULES[name]
    schedule = object.__new__(kind)
    schedule.pp_group_size, schedule._n_microbatches = p, m
    schedule.num_stages = schedule._num_stages = p * v
    schedule.n_local_stages = v
    schedule.number_of_rounds = max(1, m // p)
    schedule.microbatches_per_round = m // schedule.number_of_rounds
    actions = [action for action in schedule._calculate_single_rank_operations(stage) if action]
    parts = [part for action in actions for part in (action.sub_actions or (action,))]
    found = [(_KINDS[a.computation_type.name], a.microbatch_index, a.stage_index) for a in parts]
    if name != "dualpipe-v":
        return found
    # its whole backward passes are one action
    whole = [a.computation_type.name == "FULL_BACKWARD" for a in parts]
    weights = [("weight_gradient", *task[1:]) for task in found]
    pairs = zip(found, weights, whole, strict=True)
    return [task for one, weight, both in pairs for task in ((one, weight) if both else (one,))]


def _ours(name: str, p: int, stage: int, m: int, v: int) -> list[tuple[str, int, int]]:
    place = Layout(pp=p, vpp=v, schedule=name)  # type: ignore[arg-type]
    tasks = REGISTRY[name].order(p, stage, m, v)  # type: ignore[index]
    return [(t.kind, t.micro_batch, place.chunk(stage, t.chunk)) for t in tasks]


@pytest.mark.parametrize("p", range(2, 9))
def test_zero_bubble_v_is_torchs(p: int) -> None:
    for m in (*range(1, 2 * p + 2), 4 * p):
        for stage in range(p):
            shape = ("zero-bubble-v", p, stage, m, 2)
            assert _ours(*shape) == _of_torch(*shape)


@pytest.mark.parametrize("p", range(1, 8))
def test_dualpipe_v_is_torchs(p: int) -> None:
    for m in (2 * p, 2 * p + 1, 5 * p):
        for stage in range(p):
            shape = ("dualpipe-v", p, stage, m, 2)
            assert _ours(*shape) == _of_torch(*shape)


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 3)])
def test_interleaving_is_torchs(p: int, v: int) -> None:
    """Where more micro-batches than stages: with as many, Megatron-LM runs forward first."""
    for m in (2 * p, 5 * p):
        for stage in range(p):
            shape = ("interleaved-1f1b", p, stage, m, v)
            assert _ours(*shape) == _of_torch(*shape)


def test_stages_lie_where_torch_puts_them() -> None:
    from torch.distributed.pipelining._utils import generate_rank_to_stage_mapping

    for name, style in (("zero-bubble-v", "v"), ("interleaved-1f1b", "loop")):
        place = Layout(pp=4, vpp=2, schedule=name)  # type: ignore[arg-type]
        lies = {stage: [place.chunk(stage, k) for k in range(2)] for stage in range(4)}
        assert generate_rank_to_stage_mapping(4, 8, style=style) == lies
        assert all(place.stage_of(k) == stage for stage, held in lies.items() for k in held)
