"""Reduced: a model of one's own, small enough to be trained on a CPU, with its architecture.

What it has stays: norms, positions, grouping of heads, gates, biases, windows. Sizes shrink:
"""

from __future__ import annotations

import math

from planner.describe.model.model import Model

__all__ = ["RULES", "reduced", "untied_model"]

_LAYERS, _WIDTH, _KV_HEADS, _HEADS, _HEAD_DIM = 4, 256, 4, 16, 32
_FFN_STEP, _VOCABULARY, _RANK = 64, 512, 64
RULES = (
    f"at most {_LAYERS} layers, width {_WIDTH}, {_KV_HEADS} key-value heads with as many queries "
    f"each as before up to {_HEADS} heads, head width {_HEAD_DIM}, vocabulary {_VOCABULARY}, "
    f"latent ranks {_RANK}; the feed-forward shrinks with the width to a multiple of {_FFN_STEP}"
)
"""How `reduced` shrinks."""


def reduced(model: Model, sequence: int) -> Model:
    """The model with at most the sizes of RULES, for sequences of some tokens.

    >>> from planner import load_model
    >>> small = reduced(load_model("llama-3-8b"), 128)
    >>> small.num_heads, small.num_kv_heads, small.hidden_size, small.ffn_size
    (16, 4, 256, 896)
    """
    width = min(model.hidden_size, _WIDTH)
    ffn = math.ceil(model.ffn_size * width / model.hidden_size / _FFN_STEP) * _FFN_STEP
    kv = math.gcd(model.num_kv_heads, _KV_HEADS)
    group = model.num_heads // model.num_kv_heads
    sizes = {
        "num_layers": min(model.num_layers, _LAYERS),
        "num_window_layers": min(model.num_window_layers, _LAYERS // 2),
        "hidden_size": width,
        "ffn_size": min(model.ffn_size, ffn),
        "num_heads": kv * min(group, _HEADS // kv),
        "num_kv_heads": kv,
        "head_dim": min(model.head_dim, _HEAD_DIM),
        "vocab_size": min(model.vocab_size, _VOCABULARY),
    }
    if model.num_position_rows:
        sizes["num_position_rows"] = sequence
    latent = model.latent_attention
    if latent is not None:
        small = {name: min(size, _RANK) for name, size in latent.model_dump().items()}
        narrow = {name: min(size, _HEAD_DIM) for name, size in small.items() if "head" in name}
        return untied_model(model).replaced(**sizes, latent_attention={**small, **narrow})
    return untied_model(model).replaced(**sizes)


def untied_model(model: Model) -> Model:
    """The model without dropout and with a table for each end: pipelines hold both apart."""
    return model.replaced(tied_embeddings=False, dropout=0.0)
