"""Limits: what a framework's own code cannot build or say is refused, whatever the reason."""

from __future__ import annotations

from typing import Any

import pytest

from planner.describe.catalogue import load_model
from planner.describe.layout import Layout
from planner.emitters.limits import LLAMA, Words
from planner.emitters.recipes.megatron import DECODERS
from planner.errors import EmitError
from tests.emitters.emitted import files_of

EXPERTS = {"num_experts": 8, "top_k": 2, "ffn_size": 64}


@pytest.mark.parametrize(
    ("changes", "words", "megatron_too"),
    [
        ({"kind": "encoder"}, "no decoder", True),
        ({"experts": EXPERTS}, "experts", False),
        ({"experts": {**EXPERTS, "router_bias": True}}, "experts", True),
        ({"position": "alibi"}, "alibi", True),
        ({"position": "learned"}, "learned", False),
        ({"norm": "layernorm"}, "layernorm", False),
        ({"norms_per_layer": 4}, "4 normalisations", True),
        ({"embedding_norm": True}, "embedding", True),
        ({"activation": "gelu"}, "gated gelu", True),
        ({"gated_mlp": False}, "with silu", True),
        ({"qkv_bias": True}, "queries, keys and values only", False),
        ({"qkv_bias": True, "out_bias": True}, "some matrices only", True),
        ({"qkv_bias": True, "out_bias": True, "mlp_bias": True}, "biases", False),
        ({"head_bias": True}, "output projection", True),
        ({"qk_norm": "head"}, "(head)", False),
        ({"qk_norm": "full"}, "(full)", True),
        ({"attention_sinks": True}, "sinks", True),
        ({"parallel_residual": True}, "side by side", True),
        ({"embedding_size": 512}, "projected", True),
        ({"sliding_window": 512, "num_window_layers": 32}, "512 tokens in 32 layers", False),
        ({"sliding_window": 512, "num_window_layers": 16}, "512 tokens in 16 layers", True),
        ({"head_dim": 64}, "heads of another width", False),
    ],
)
def test_what_sets_a_model_apart_from_a_llama(
    changes: dict[str, Any], words: str, megatron_too: bool
) -> None:
    llama = load_model("llama-3-8b")
    assert LLAMA.lacks(llama, 4096) == DECODERS.lacks(llama, 4096) == ""
    changed = llama.replaced(**changes)
    assert words in LLAMA.lacks(changed, 4096)
    assert bool(DECODERS.lacks(changed, 4096)) == megatron_too


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    mistral = load_model("mistral-7b")
    assert LLAMA.lacks(mistral, mistral.sliding_window) == ""
    assert LLAMA.lacks(mistral, mistral.sliding_window + 1) != ""


def test_a_window_that_a_fork_cannot_say_is_refused() -> None:
    case = ("mistral-7b", "aurora", 1, Layout(dp=12, zero_stage=1))
    assert "megatron.args" in files_of(*case, "megatron-deepspeed", sequence_length=4096)
    with pytest.raises(EmitError, match="a window of 4096 tokens in 32 layers"):
        files_of(*case, "megatron-deepspeed", sequence_length=8192)
    case = ("mistral-7b", "polaris", 3, Layout(dp=12, zero_stage=1))
    args = files_of(*case, "megatron-lm", sequence_length=8192)["megatron.args"]
    assert "--window-size=4095,0\n" in args


def test_words_name_what_can_be_used() -> None:
    with pytest.raises(EmitError, match=r"^schedule x is not written for ours; use a, b or c$"):
        Words("schedule", "ours", {"a": 1, "b": 2, "c": 3})["x"]
