"""Hugging Face configurations: config.json fields for models of the catalogue."""

from typing import Any

from planner.describe.model.model import Model

_FIELDS = {
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_size",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "tie_word_embeddings": "tied_embeddings",
    "max_position_embeddings": "max_sequence_length",
}
_GPT2 = {"n_embd": "hidden_size", "n_head": "num_heads", "n_positions": "max_sequence_length"}
_SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "gpt_neox": {"hidden_act": "gelu_fast", "rotary_pct": 0.25},
    "mistral": {"sliding_window": None},
    "phi3": {"pad_token_id": 0},
}
_UNSTATED = {"gpt_neox": ("num_key_value_heads", "head_dim"), "phi3": ("head_dim",)}
"""Fields that a family's config.json does not have."""


def configuration(model: Model, layers: int) -> dict[str, Any]:
    """Return the fields of a config.json with the sizes of a model, without dropout."""
    names = _GPT2 if model.family == "gpt2" else _FIELDS
    fields = {key: getattr(model, name) for key, name in names.items()}
    fields = {k: v for k, v in fields.items() if k not in _UNSTATED.get(model.family, ())}
    fields |= {"model_type": model.family, "vocab_size": model.vocab_size}
    fields["n_layer" if model.family == "gpt2" else "num_hidden_layers"] = layers
    return fields | _SHAPES.get(model.family, {})
