"""Model: an architecture as read from a catalogue or a config.json, and its parameter count."""

from planner.describe.model.shapes import Shapes
from planner.describe.model.weight_blocks import num_params

_USUAL_SEQUENCE = 2048
_MOST_SEQUENCE = 4096
# defaults for jobs without a sequence length: models' own limits are far above usual training


class Model(Shapes):
    """An architecture. Sizes are those of the checkpoint, without padding."""

    @property
    def longest_sequence(self) -> int:
        """Longest sequence: positions, patches of an image, 1 for samples; 0: no limit [tokens]."""
        if self.counts_samples:
            return 1
        if self.vision is not None:
            return (self.vision.image_size // self.vision.patch_size) ** 2 + 1
        return self.max_sequence_length

    @property
    def depth(self) -> int:
        """Number of layers in both stacks, or of blocks in a convolutional network."""
        if self.convolutional is not None:
            return sum(stage.count for stage in self.convolutional.stages)
        return self.num_layers + self.num_decoder_layers

    @property
    def default_sequence_length(self) -> int:
        """Default sequence length: the longest sequence, at most 4096 [tokens]."""
        return min(self.longest_sequence or _USUAL_SEQUENCE, _MOST_SEQUENCE)

    @property
    def num_params(self) -> int:
        """Learned parameters, tied tensors once, without the modules of multi-token prediction."""
        return num_params(self)
