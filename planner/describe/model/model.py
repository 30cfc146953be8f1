"""Model: the frozen description of an architecture, as read from a catalogue or config.json.

It states shapes and counts its parameters. What the shapes cost is worked out in `planner.cost`.
"""

from __future__ import annotations

from planner.describe.model.shapes import Shapes
from planner.describe.model.weights import num_params

__all__ = ["Model"]


class Model(Shapes):
    """An architecture. Sizes are those of the checkpoint, without padding."""

    @property
    def num_params(self) -> int:
        """Learned parameters, tied tensors once.

        Left out: buffers, padding of the vocabulary, multi-token-prediction modules.

        >>> Model(name="m", family="llama", num_layers=2, hidden_size=8, num_heads=2,
        ...       num_kv_heads=1, head_dim=4, ffn_size=16, vocab_size=32, norm="rmsnorm",
        ...       gated_mlp=True, activation="silu").num_params
        1704
        """
        if self.convolutional is not None:
            return self.convolutional.num_params
        return num_params(self)
