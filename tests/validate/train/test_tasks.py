"""Tasks of real runs: what a strategy needs of them, their batches, and reduced models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from planner import load_model
from planner.errors import DescriptionError, LayoutError
from planner.validate.train.strategies import Spread, spread_of
from planner.validate.train.tasks import (
    SMALL_GPT,
    OwnTask,
    Task,
    fields_of,
    fit_task,
    initial_state,
    make_task,
    reduced,
)


def _own(units: int = 3, split_width: int = 6, splits: int = 1, **reasons: str) -> OwnTask:
    """A module of three units whose Linear layers divide by 6."""
    traced = SimpleNamespace(
        splits=("a",) * splits,
        split_width=split_width,
        units=tuple(map(str, range(units))),
        no_tp=reasons.get("no_tp", ""),
        no_pp=reasons.get("no_pp", ""),
    )
    model: Any = SimpleNamespace(name="net", traced=traced, hidden_size=5)
    return OwnTask(model, batch=8)


@pytest.mark.parametrize(
    ("task", "spread", "reason"),
    [
        (_own(), Spread("1f1b", pp=3), ""),
        (_own(), Spread("1f1b", pp=4), "not cut into 4 stages, as it has 3 units"),
        (_own(), Spread("interleaved", pp=2, chunks=2), "not cut into 4 stages"),
        (_own(units=0), Spread("tp", tp=2), ""),
        (_own(units=0), Spread("1f1b", pp=2), "as it has 0 units"),
        (_own(units=0, no_pp="its graph branches"), Spread("1f1b", pp=2), "its graph branches"),
        (_own(), Spread("tp", tp=3), ""),
        (_own(), Spread("tp", tp=4), "tp = 4, as the degree must divide 6"),
        (_own(splits=0), Spread("tp", tp=2), "tp = 2, as"),
        (_own(splits=0), Spread("ddp", dp=4), ""),
        (_own(no_tp="it has no Linear", splits=0), Spread("tp", tp=2), "as it has no Linear"),
        (_own(), Spread("sp", tp=2, sequence_parallel=True), "samples, not sequences"),
    ],
)
def test_own_modules_are_spread_as_their_graph_allows(
    task: OwnTask, spread: Spread, reason: str
) -> None:
    if not reason:
        assert task.fit(spread) is task
        return
    with pytest.raises(LayoutError, match=reason):
        task.fit(spread)


@pytest.mark.parametrize(
    ("strategy", "world", "layers"),
    [("ddp", 4, 4), ("1f1b", 3, 6), ("1f1b", 8, 8), ("interleaved", 2, 4), ("interleaved", 4, 8)],
)
def test_layers_are_added_until_chunks_are_even(strategy: str, world: int, layers: int) -> None:
    assert Task(batch=48).fit(spread_of(strategy, world)).depth == layers


@pytest.mark.parametrize(
    ("changes", "tp", "reason"),
    [
        ({}, 4, ""),
        ({}, 8, "must divide by tp"),
        ({"ffn_size": 1023}, 2, "must divide by tp"),
        ({"vocab_size": 511}, 2, "must divide by tp"),
        ({"vocab_size": 511}, 1, ""),
        ({"qk_norm": "full"}, 2, "norms over all heads"),
        ({"qk_norm": "full"}, 1, ""),
        ({"qk_norm": "head"}, 2, ""),
    ],
)
def test_widths_must_divide_by_tp(changes: dict[str, Any], tp: int, reason: str) -> None:
    task, spread = Task(SMALL_GPT.replaced(**changes)), Spread("tp", tp=tp)
    if not reason:
        assert task.fit(spread) == task
        return
    with pytest.raises(LayoutError, match=reason):
        task.fit(spread)


def test_the_batch_divides_into_the_micro_batches_of_all_replicas() -> None:
    assert fit_task(Task(batch=8), spread_of("3d", 8)).batch == 8
    with pytest.raises(LayoutError, match=r"batch 12 does not .* = 8; use a multiple of 8"):
        fit_task(Task(batch=12), spread_of("3d", 8))


def test_the_target_of_a_token_is_the_next_one() -> None:
    task = Task(batch=3, sequence=16)
    tokens, following = task.batch_of(0)
    assert tokens.shape == following.shape == (3, 16)
    assert torch.equal(tokens[:, 1:], following[:, :-1])
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < SMALL_GPT.vocab_size
    assert torch.equal(tokens, task.batch_of(0)[0])
    assert not torch.equal(tokens, task.batch_of(1)[0])


def test_the_loss_of_equal_logits_is_that_of_chance() -> None:
    task = Task(batch=2, sequence=4)
    loss = task.loss(torch.zeros(2, 4, 512), task.batch_of(0)[1])
    assert float(loss) == pytest.approx(torch.log(torch.tensor(512.0)).item())


def test_the_loss_of_an_own_module_weights_every_result() -> None:
    output = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
    # weights -1, 0 and 1: (3 - 1 + 1 - 3) / 6 and, of the first row alone, (3 - 1) / 3
    assert float(_own().loss(output, torch.zeros(2))) == 1
    assert float(_own().loss(output[:1], torch.zeros(1))) == pytest.approx(1 + 2 / 3)


def test_shapes_between_layers() -> None:
    assert (Task(sequence=7).stream, _own().stream) == ((7, 256), (1, 5))


def test_the_first_weights_are_the_same_each_time_and_leave_the_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    small = Task(SMALL_GPT.replaced(num_layers=1))
    first, second = initial_state(small), initial_state(small)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert sum(value.numel() for value in first.values()) == small.model.num_params
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_task_is_made_again_from_its_fields() -> None:
    task = Task(SMALL_GPT, 4, 32)
    assert make_task(**fields_of(task)) == task


@pytest.mark.parametrize(
    ("changes", "sizes", "reason"),
    [
        ({}, (0, 8), "batch = 0 must be at least 1"),
        ({}, (8, 0), "sequence = 0 must be at least 1"),
        # 256 x 4 x 128 elements of a sample between layers: 500,000,000 of 3,815 samples
        ({}, (3815, 128), "too large for a small shard"),
        ({"output_head": False}, (8, 8), "it predicts no tokens"),
        # 4 x 3.4 M of the layers, and 4 x 2 x 256 for each token of the vocabulary
        ({"vocab_size": 250_000}, (8, 8), "too large for a small shard"),
    ],
)
def test_tasks_that_are_not_run(
    changes: dict[str, Any], sizes: tuple[int, int], reason: str
) -> None:
    with pytest.raises(DescriptionError, match=reason):
        make_task(SMALL_GPT.replaced(**changes).model_dump(mode="json"), *sizes)


def test_the_largest_task_that_is_run() -> None:
    assert make_task(SMALL_GPT.model_dump(mode="json"), 3814, 128).batch == 3814


def test_experts_are_not_run() -> None:
    mixtral = reduced(load_model("mixtral-8x7b"), 128).model_dump(mode="json")
    with pytest.raises(DescriptionError, match="have no fp32 kernel"):
        make_task(mixtral, 8, 8)


_SIZES = (
    *("num_layers", "hidden_size", "num_heads", "num_kv_heads"),
    *("head_dim", "ffn_size", "vocab_size", "num_position_rows"),
)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        # 3072 x 256 / 768; the 12 heads have 4 in common with the limit
        ("gpt2", (4, 256, 4, 4, 32, 1024, 512, 64)),
        # 28,672 x 256 / 8192; 8 queries of a key, of which 4 x 4 are kept
        ("llama-3-70b", (4, 256, 16, 4, 32, 896, 512, 0)),
        # 25 heads share no factor with 4
        ("gpt2-xl", (4, 256, 1, 1, 32, 1024, 512, 64)),
    ],
)
def test_reduced_models(name: str, sizes: tuple[int, ...]) -> None:
    small = reduced(load_model(name), 64)
    assert tuple(getattr(small, field) for field in _SIZES) == sizes
    assert not small.tied_embeddings
    assert small.dropout == 0


def test_reduced_latent_attention() -> None:
    small = reduced(load_model("deepseek-v3"), 64).latent_attention
    assert small is not None
    assert set(small.model_dump().values()) == {64, 32}
    ranks = (small.q_lora_rank, small.kv_lora_rank)
    assert (ranks, small.qk_nope_head_dim, small.v_head_dim) == ((64, 64), 32, 32)
