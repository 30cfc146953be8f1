"""Published checkpoints by their config.json, and families that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from planner.describe.catalogue import load_model
from planner.describe.model.huggingface.config import FAMILIES, UNDESCRIBED, from_config
from planner.errors import PlannerError
from tests.describe.model.huggingface.test_config import (
    NOT_SHAPES,
    assert_one_sentence,
    count_with_transformers,
    like,
)

_SCOUT = like("llama4_text", hidden_size=5120, intermediate_size=8192, num_hidden_layers=48)
_SCOUT |= {"intermediate_size_mlp": 16384, "num_attention_heads": 40, "num_key_value_heads": 8}
_SCOUT |= {"head_dim": 128, "vocab_size": 202048, "num_experts_per_tok": 1}

# Sizes of published checkpoints: defaults of transformers' classes that are documented as those of
# the checkpoint, or the source named. Counts: transformers 5.23 on the meta device.
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    # SmolLM3Config's defaults, documented as HuggingFaceTB/SmolLM3-3B
    "smollm3-3b": (
        like("smollm3", hidden_size=2048, intermediate_size=11008, num_hidden_layers=36)
        | {"num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 128256},
        3_075_098_624,
    ),
    # Glm4MoeConfig's defaults; docs.nvidia.com/nemo/megatron-bridge, GLM 4.5: the same, and 106B,
    # which are 105.6B without embedding and head
    "glm-4.5-air": (
        like("glm4_moe", hidden_size=4096, intermediate_size=10944, num_hidden_layers=46)
        | {"num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128}
        | {"vocab_size": 151552, "attention_bias": True, "moe_intermediate_size": 1408}
        | {"n_routed_experts": 128, "num_experts_per_tok": 8, "first_k_dense_replace": 1},
        106_852_245_504,
    ),
    # the same page: 355B, which count one more expert layer for multi-token prediction
    "glm-4.5": (
        like("glm4_moe", hidden_size=5120, intermediate_size=12288, num_hidden_layers=92)
        | {"num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128}
        | {"vocab_size": 151552, "attention_bias": True, "moe_intermediate_size": 1536}
        | {"n_routed_experts": 160, "num_experts_per_tok": 8, "first_k_dense_replace": 3}
        | {"use_qk_norm": True},
        352_797_814_784,
    ),
    # Llama4TextConfig's defaults, documented as meta-llama/Llama-4-Scout-17B-16E; ~109B with
    # vision (huggingface.co/blog/llama4-release)
    "llama-4-scout": (
        {**_SCOUT, "interleave_moe_layer_step": 1, "num_local_experts": 16},
        107_769_861_120,
    ),
    # transformers' convert_llama4_weights_to_hf.py: every other layer; 128 experts, ~400B
    "llama-4-maverick": (
        {**_SCOUT, "interleave_moe_layer_step": 2, "num_local_experts": 128, "use_qk_norm": False},
        400_711_848_960,
    ),
    # config.json of mosaicml/mpt-7b
    "mpt-7b": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32}
        | {
            "vocab_size": 50432,
            "max_seq_len": 2048,
            "no_bias": True,
            "attn_config": {"alibi": True},
        },
        6_649_286_656,
    ),
    # OlmoConfig's defaults: allenai/OLMo-7B
    "olmo-7b": (
        like("olmo", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32)
        | {"num_attention_heads": 32, "vocab_size": 50304},
        6_888_095_744,
    ),
    # arXiv:2409.02060, table 1: 6.9B, 64 experts of width 1024
    "olmoe-1b-7b": (
        like("olmoe", hidden_size=2048, intermediate_size=1024, num_hidden_layers=16)
        | {"num_attention_heads": 16, "num_experts": 64, "num_experts_per_tok": 8}
        | {"vocab_size": 50304},
        6_919_161_856,
    ),
    # StableLmConfig's defaults: stabilityai/stablelm-3b-4e1t
    "stablelm-3b-4e1t": (
        like("stablelm", hidden_size=2560, intermediate_size=6912, num_hidden_layers=32)
        | {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 50304},
        2_795_443_200,
    ),
    # CohereConfig's defaults: CohereForAI/c4ai-command-r-v01
    "command-r": (
        like("cohere", hidden_size=8192, intermediate_size=22528, num_hidden_layers=40)
        | {"num_attention_heads": 64, "vocab_size": 256000},
        34_980_831_232,
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("fields", "total"), PUBLISHED.values(), ids=PUBLISHED)
def test_published_checkpoints(fields: dict[str, Any], total: int) -> None:
    assert from_config(fields, "test").num_params == total
    assert count_with_transformers(fields) == total


@pytest.mark.parametrize(
    ("name", "sequence"),
    [("smollm3-3b", 32768), ("glm-4.5-air", 131072), ("llama-4-scout", 262144)],
)
def test_reader_and_catalogue_describe_the_same_model(name: str, sequence: int) -> None:
    fields = {**PUBLISHED[name][0], "max_position_embeddings": sequence}
    read = from_config(fields, name).model_dump(exclude=NOT_SHAPES)
    assert read == load_model(name).model_dump(exclude=NOT_SHAPES)


def test_nemotron_is_read_as_the_catalogue_has_it() -> None:
    fields = like("nemotron", hidden_size=18432, intermediate_size=73728, num_hidden_layers=96)
    fields |= {"num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 192}
    fields |= {"vocab_size": 256000, "max_position_embeddings": 4096}
    read = from_config(fields, "nemotron-4-340b").model_dump(exclude=NOT_SHAPES)
    assert read == load_model("nemotron-4-340b").model_dump(exclude=NOT_SHAPES)


def test_undescribed_families_are_refused_with_what_is_missing() -> None:
    for family in ("mamba", "mamba2", "jamba", "qwen3_next", "recurrent_gemma", "nemotron_h"):
        with pytest.raises(PlannerError, match="not in the cost model; trace a torch module") as it:
            from_config(like(family), "hybrid")
        assert_one_sentence(str(it.value), f'model_type = "{family}" has ')
    assert not set(UNDESCRIBED) & set(FAMILIES)


def test_undescribed_families_are_those_of_transformers() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers lists the families")
    assert set(UNDESCRIBED) <= set(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)
