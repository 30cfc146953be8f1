"""What the torch model of every kind computes: loss, logits and gradients of fixed weights.

Sharded runs are compared with these models on one process, so a fault of a model would hide there.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from planner.validate.sharding.models import Patches, Stage, cross_entropy
from tests.validate.trace.test_small_traces import KINDS, small

NAMES = ("gpt2", "llama-3.2-1b", "mistral-7b", "mixtral-8x7b", "opt-66b", "vit-h-14", *KINDS)
_TOKENS = 24


def computed() -> dict[str, dict[str, float]]:
    """Figures by model; weights and inputs are drawn by numpy, the same with every torch."""
    return {name: _figures(name) for name in NAMES}


def _figures(name: str) -> dict[str, float]:
    model = small(name).replaced(max_sequence_length=_TOKENS)
    stage, rng = Stage(model, range(2), eager=True), np.random.default_rng(7)
    stage.tie()
    with torch.no_grad():
        for weight in stage.parameters():
            drawn = torch.from_numpy(rng.standard_normal(weight.shape, dtype=np.float32))
            weight.copy_(0.1 * drawn + 0.5 * (weight.ndim == 1))
    stage.default_rope = stage.tables(_TOKENS, torch.device("cpu"), torch.float32)
    inputs, labels = _batch(stage, model.vocab_size, rng)
    logits = stage(inputs)
    loss = cross_entropy(logits, labels)
    torch.autograd.backward(loss)
    gradients = [weight.grad.double() for weight in stage.parameters() if weight.grad is not None]
    return {
        "loss": loss.item(),
        "logits": logits.double().abs().mean().item(),
        "first": logits.flatten()[0].item(),
        "gradients": float(sum(gradient.square().sum() for gradient in gradients)) ** 0.5,
        "tensors": len(gradients),
    }


def _batch(stage: Stage, words: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.from_numpy(rng.integers(0, max(words, 2), (2, _TOKENS)))
    if isinstance(stage.embedding, Patches):
        shape = (2, _TOKENS - 1, stage.embedding.patch.in_features)
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)), labels
    return labels.roll(1, 1), labels
