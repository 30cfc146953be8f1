"""Llama: whether a model is one, whatever its sizes, so that a framework's own Llama can run it."""

from __future__ import annotations

from planner.describe.model.model import Model

__all__ = ["unlike_llama"]


def unlike_llama(model: Model, sequence_length: int) -> str:
    """What sets a model apart from a Llama; empty where nothing does.

    >>> from planner.describe.catalogue import load_model
    >>> [unlike_llama(load_model(name), 4096) for name in ("mistral-7b", "gpt2")]
    ['', 'has learned positions']
    """
    trouble = {
        "has experts": model.experts is not None,
        "has latent attention": model.latent_attention is not None,
        f"is no decoder but {model.kind}": model.kind != "decoder",
        f"has {model.position} positions": model.position != "rope",
        f"normalises with {model.norm}": model.norm != "rmsnorm",
        "has no gated SiLU": not model.gated_mlp or model.activation != "silu",
        "has biases": model.qkv_bias or model.out_bias or model.mlp_bias or model.head_bias,
        "normalises queries and keys": model.qk_norm != "none",
        "has other normalisations": model.norms_per_layer != 2 or model.embedding_norm,
        "has attention sinks": model.attention_sinks,
        f"has a window of {model.sliding_window} tokens": (
            0 < model.sliding_window < sequence_length
        ),
        "has heads of another width": model.head_dim * model.num_heads != model.hidden_size,
    }
    return next((what for what, found in trouble.items() if found), "")
