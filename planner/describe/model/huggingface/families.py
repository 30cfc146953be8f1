"""Families of Hugging Face models, with the defaults of transformers 5.23.

A family is a row: the function that reads its shapes, the keys that it reads with the value of
an absent one, the fields of Model that it fixes, and the switches that no description covers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.describe.model.huggingface import family_shapes as shapes
from planner.describe.model.huggingface.config_fields import Fields

__all__ = ["FAMILIES", "Family"]


@dataclass(frozen=True, slots=True)
class Family:
    """Reader, defaults and fixed fields of one family."""

    read: Callable[[Fields], dict[str, Any]]
    defaults: Mapping[str, Any]
    """Keys of the family with the value of an absent one."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Model that are the same for the whole family."""
    refused: tuple[str, ...] = ()
    """Switches that would add undescribed weights."""
    note: str = ""
    """Weights that are not counted."""
    written: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Written` that no file states."""


def _trunk(
    hidden: int, ffn: int, layers: int, heads: int, vocab: int, positions: int, activation: str
) -> dict[str, Any]:
    """Keys and defaults that most families share."""
    return {
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "vocab_size": vocab, "max_position_embeddings": positions,
        "hidden_act": activation, "tie_word_embeddings": False,
    }  # fmt: skip


_HEADS = {"num_key_value_heads": None, "head_dim": None, "attention_dropout": 0.0}
_LLAMA = _trunk(4096, 11008, 32, 32, 32000, 2048, "silu") | _HEADS
_MISTRAL = _LLAMA | {
    "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    "sliding_window": 4096,
}  # fmt: skip
_QWEN2 = _LLAMA | {
    "intermediate_size": 22016, "num_key_value_heads": 32, "vocab_size": 151936,
    "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 4096,
    "max_window_layers": 28, "layer_types": None,
}  # fmt: skip
_QWEN3 = _QWEN2 | {"head_dim": 128, "attention_bias": False}
_GEMMA = _LLAMA | _trunk(3072, 24576, 28, 16, 256000, 8192, "gelu_pytorch_tanh") | {
    "num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True,
    "attention_bias": False,
}  # fmt: skip
_GEMMA2 = _GEMMA | {
    "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096, "sliding_window_pattern": 2, "layer_types": None,
}  # fmt: skip
_GEMMA3 = _GEMMA2 | {
    "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6,
}  # fmt: skip
_SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": None}
_QWEN2_MOE = {key: _QWEN2[key] for key in _LLAMA} | _SPARSE | {
    "num_key_value_heads": 16, "qkv_bias": True, "num_experts": 60, "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
}  # fmt: skip
_WINDOW = ("use_sliding_window", "sliding_window")
_QWEN3_MOE = {key: _QWEN2[key] for key in (*_LLAMA, *_WINDOW)} | _SPARSE | {
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
    "num_key_value_heads": 4, "attention_bias": False, "num_local_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768,
}  # fmt: skip
_DEEPSEEK_V3 = _trunk(7168, 18432, 61, 128, 129280, 4096, "silu") | {
    "attention_dropout": 0.0, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_group": 8,
    "topk_group": 4, "num_experts_per_tok": 8, "n_shared_experts": 1,
    "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
}  # fmt: skip
_DEEPSEEK_V2 = _DEEPSEEK_V3 | {
    "n_group": None, "topk_group": None, "max_position_embeddings": 2048, "n_routed_experts": 64,
    "n_shared_experts": 2, "first_k_dense_replace": 0,
}  # fmt: skip
_GPT_OSS = _LLAMA | {
    "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
    "attention_bias": True, "num_local_experts": 128, "num_experts_per_tok": 4,
    "sliding_window": 128, "sliding_window_pattern": 2, "layer_types": None,
}  # fmt: skip
_GPT2 = {
    "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None, "n_positions": 1024,
    "vocab_size": 50257, "activation_function": "gelu_new", "tie_word_embeddings": True,
    "resid_pdrop": 0.1, "attn_pdrop": 0.1,
}  # fmt: skip
# GPT-NeoX, Phi and StarCoder2 share these names; their sizes are always stated
_DENSE = _trunk(768, 3072, 12, 12, 50257, 2048, "gelu")
_BERT = _DENSE | {
    "max_position_embeddings": 512, "type_vocab_size": 2, "tie_word_embeddings": True,
    "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
}  # fmt: skip
_OPT = {
    "hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "word_embed_proj_dim": 768, "vocab_size": 50272, "max_position_embeddings": 2048,
    "activation_function": "relu", "tie_word_embeddings": True, "enable_bias": True,
    "do_layer_norm_before": True, "_remove_final_layer_norm": False, "dropout": 0.1,
    "attention_dropout": 0.0,
}  # fmt: skip
_BLOOM = {
    "hidden_size": 64, "n_layer": 2, "n_head": 8, "vocab_size": 250880,
    "tie_word_embeddings": True, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
_FALCON = {
    "hidden_size": 4544, "ffn_hidden_size": None, "num_hidden_layers": 32,
    "num_attention_heads": 71, "num_kv_heads": None, "num_ln_in_parallel_attn": None,
    "vocab_size": 65024, "max_position_embeddings": 2048, "activation": "gelu",
    "tie_word_embeddings": True, "alibi": False, "bias": False, "multi_query": True,
    "new_decoder_architecture": False, "parallel_attn": True, "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
_VIT = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "image_size": 224, "patch_size": 16, "num_channels": 3,
    "hidden_act": "gelu", "qkv_bias": True, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_T5 = {
    "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
    "num_heads": 8, "vocab_size": 32128, "feed_forward_proj": "relu",
    "relative_attention_num_buckets": 32, "tie_word_embeddings": True, "dropout_rate": 0.1,
}  # fmt: skip

_BIASES = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_ENCODER = _BIASES | {"pooler": True, "output_head": False}
_FIXED_BERT = _ENCODER | {
    "kind": "encoder",
    "embedding_norm": True,
    "final_norm": False,
    "position": "learned",
}
_PARALLEL = {"norms_per_layer": 1, "parallel_residual": True, "head_bias": True}
_NO_HEADS = "encoder with its pooler; the pretraining heads are not counted"
_NO_MTP = "multi-token-prediction modules are not counted"

_EXACT = {"exact_norm_weight": True}
_JOINED = {"joined_qkv": True, "joined_rotary": True}

FAMILIES: dict[str, Family] = {
    "llama": Family(shapes.llama, _LLAMA | {"attention_bias": False, "mlp_bias": False}),
    "granite": Family(shapes.llama, _LLAMA | {"attention_bias": False, "mlp_bias": False}),
    "mistral": Family(shapes.llama, _MISTRAL),
    "qwen2": Family(shapes.llama, _QWEN2, {"qkv_bias": True}),
    "qwen3": Family(shapes.llama, _QWEN3, {"qk_norm": "head"}),
    "phi3": Family(
        shapes.llama, _LLAMA | {"sliding_window": None, "resid_pdrop": 0.0}, written=_JOINED
    ),
    "olmo2": Family(
        shapes.llama, _LLAMA | {"attention_bias": False}, {"qk_norm": "full"}, written=_EXACT
    ),
    "gemma": Family(shapes.llama, _GEMMA, written=_EXACT),
    "gemma2": Family(
        shapes.llama,
        _GEMMA2,
        {"norms_per_layer": 4, "attention_softcap": True, "logits_softcap": True},
        written=_EXACT,
    ),
    "gemma3_text": Family(
        shapes.llama, _GEMMA3, {"norms_per_layer": 4, "qk_norm": "head"}, written=_EXACT
    ),
    "mixtral": Family(
        shapes.mixtral,
        _MISTRAL | {"sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "qwen2_moe": Family(shapes.qwen_moe, _QWEN2_MOE),
    "qwen3_moe": Family(shapes.qwen_moe, _QWEN3_MOE, {"qk_norm": "head"}),
    "deepseek_v2": Family(
        shapes.deepseek, _DEEPSEEK_V2, refused=("attention_bias", "mlp_bias"), note=_NO_MTP
    ),
    "deepseek_v3": Family(shapes.deepseek, _DEEPSEEK_V3, refused=("attention_bias",), note=_NO_MTP),
    "gpt_oss": Family(shapes.gpt_oss, _GPT_OSS, {"attention_sinks": True}),
    "gpt2": Family(shapes.gpt2, _GPT2, _BIASES, refused=("add_cross_attention",)),
    "gptj": Family(
        shapes.gptj,
        _GPT2 | {"tie_word_embeddings": False, "resid_pdrop": 0.0, "attn_pdrop": 0.0},
        _PARALLEL | {"mlp_bias": True},
    ),
    "gpt_neox": Family(
        shapes.dense,
        _DENSE | {"attention_bias": True, "use_parallel_residual": True, "hidden_dropout": 0.0},
        {"mlp_bias": True},
        written=_JOINED,
    ),
    "phi": Family(
        shapes.dense,
        _DENSE
        | {"num_key_value_heads": None, "head_dim": None, "hidden_act": "gelu_new"}
        | {"resid_pdrop": 0.0},
        _PARALLEL | _BIASES,
        refused=("qk_layernorm",),
        written={"joined_rotary": True},
    ),
    "starcoder2": Family(
        shapes.dense,
        _DENSE
        | {"num_key_value_heads": 2, "max_position_embeddings": 4096, "head_dim": None}
        | {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "use_bias": True}
        | {"sliding_window": None, "residual_dropout": 0.0},
    ),
    "opt": Family(shapes.opt, _OPT, {"position": "learned"}),
    "bloom": Family(shapes.bloom, _BLOOM, _BIASES | {"embedding_norm": True, "position": "alibi"}),
    "falcon": Family(shapes.falcon, _FALCON),
    "bert": Family(shapes.bert, _BERT, _FIXED_BERT, ("add_cross_attention",), _NO_HEADS),
    "roberta": Family(shapes.roberta, _BERT, _FIXED_BERT, ("add_cross_attention",), _NO_HEADS),
    "vit": Family(
        shapes.vit,
        _VIT,
        {"kind": "vision", "position": "learned", "out_bias": True, "mlp_bias": True}
        | {"pooler": True, "output_head": False},
        note="encoder with its pooler; a classifier is not counted",
    ),
    "t5": Family(
        shapes.t5, _T5, {"kind": "encoder-decoder", "norm": "rmsnorm", "position": "relative"}
    ),
}
