"""SupportedModels: what sets a model apart from those that a framework's own code builds."""

from __future__ import annotations

from typing import Any

import pytest

from planner.describe.catalogue import load_framework, load_model
from planner.describe.framework.support import Flavor, SupportedModels

EXPERTS = {"num_experts": 8, "top_k": 2, "ffn_size": 64}
LLAMA = SupportedModels(any_head_width=False)


@pytest.mark.parametrize(
    ("changes", "words", "megatron_too"),
    [
        ({"kind": "encoder"}, "is of kind encoder", True),
        ({"experts": EXPERTS}, "has experts", False),
        ({"experts": {**EXPERTS, "router_bias": True}}, "biased experts", True),
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
        ({"parallel_residual": True}, "in parallel", True),
        ({"embedding_size": 512}, "projected", True),
        ({"sliding_window": 512, "num_window_layers": 32}, "512 tokens in 32 layers", False),
        ({"sliding_window": 512, "num_window_layers": 16}, "512 tokens in 16 layers", False),
        ({"head_dim": 64}, "head width other than", False),
    ],
)
def test_what_sets_a_model_apart_from_a_llama(
    changes: dict[str, Any], words: str, megatron_too: bool
) -> None:
    megatron = load_framework("megatron-lm").code
    llama = load_model("llama-3-8b")
    assert LLAMA.lacks(llama, 4096) == megatron.unsupported_model(llama, 4096) == ""
    changed = llama.replaced(**changes)
    assert words in LLAMA.lacks(changed, 4096)
    assert bool(megatron.unsupported_model(changed, 4096)) == megatron_too


def test_a_window_as_long_as_the_sequence_is_none() -> None:
    mistral = load_model("mistral-7b")
    assert LLAMA.lacks(mistral, mistral.sliding_window) == ""
    assert LLAMA.lacks(mistral, mistral.sliding_window + 1) != ""


def test_sizes_known_by_name() -> None:
    """A code that takes its own sizes only refuses others; experts count by their own width."""
    named = Flavor(name="8B", sizes=(32, 4096, 14336, 8, 128256))
    only = SupportedModels(flavors=(named,), any_size=False)
    assert only.flavor(load_model("llama-3-8b")) == "8B"
    assert only.lacks(load_model("llama-3-8b"), 4096) == ""
    assert only.lacks(load_model("llama-2-7b"), 4096) == "has custom sizes"
    fsdp2 = load_framework("fsdp2").code.models
    names = {d.module: d.flavor(load_model(m)) for d, m in zip(fsdp2[2:], OTHERS, strict=True)}
    assert names == {"qwen3": "30B-A3B", "deepseek_v3": "671B", "gpt_oss": "120b"}


OTHERS = ("qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b")


@pytest.mark.parametrize(
    ("model", "framework", "module"),
    [
        ("deepseek-v3", "megatron-lm", "latent"),
        ("gpt-oss-20b", "megatron-lm", "gpt-oss"),
        ("deepseek-v2", "fsdp2", "deepseek_v3"),
        ("gpt-oss-20b", "fsdp2", "gpt_oss"),
        ("llama-3.2-1b", "fsdp2", "llama3"),
        ("qwen3-8b", "fsdp2", "qwen3"),
    ],
)
def test_models_beyond_llama(model: str, framework: str, module: str) -> None:
    lacks = [d.lacks(load_model(model), 4096) for d in load_framework(framework).code.models]
    found = [d.module for d in load_framework(framework).code.models]
    assert [name for name, why in zip(found, lacks, strict=True) if not why] == [module]
