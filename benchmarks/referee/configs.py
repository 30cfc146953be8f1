"""Hugging Face configurations: config.json fields for models of the catalogue."""

from __future__ import annotations

from typing import Any

from planner.describe.model.model import Model

__all__ = ["configuration"]


def configuration(model: Model, layers: int) -> dict[str, Any]:
    """Return the fields of a config.json with the sizes of a model, without dropout."""
    if model.family == "gpt2":
        return {
            "model_type": "gpt2",
            "vocab_size": model.vocab_size,
            "n_embd": model.hidden_size,
            "n_layer": layers,
            "n_head": model.num_heads,
            "n_positions": model.max_sequence_length,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        }
    config = {
        "model_type": model.family,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_size,
        "num_hidden_layers": layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "max_position_embeddings": model.max_sequence_length,
        "tie_word_embeddings": model.tied_embeddings,
    }
    if model.family not in ("gpt_neox", "phi3"):
        config["head_dim"] = model.head_dim
    if model.family == "gpt_neox":
        del config["num_key_value_heads"]
        config["hidden_act"] = "gelu_fast"
        config["rotary_pct"] = 0.25
    if model.family == "mistral":
        config["sliding_window"] = None
    if model.family == "phi3":
        config["pad_token_id"] = 0
    return config
