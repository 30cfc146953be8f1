"""ZeRO-3, by hand: data parallel, but every rank keeps a quarter of weights and states."""

import torch
import torch.distributed as dist
from shared import (
    LAYERS,
    RANKS,
    SHAPES,
    RankState,
    initial_weights,
    input_gradient,
    output_gradient,
    product,
    run,
)


class Zero3(RankState):
    """One rank of ZeRO-3."""

    def step(self, number: int) -> None:
        """One training step."""
        self.load(number)
        for layer in range(LAYERS):
            self.gather(layer)
            self.forward(layer)
        for layer in reversed(range(LAYERS)):
            self.gather(layer)
            self.backward(layer)
            self.reduce(layer)
        self.update()

    def start(self) -> None:
        """Every rank holds a quarter of every weight and of Adam's states."""
        for layer, weight in enumerate(initial_weights()):
            self.hold(layer, weight.chunk(RANKS)[self.rank])

    def gather(self, layer: int) -> None:
        """All-gather: every rank gets the whole weight of one layer, for a moment."""
        whole = torch.empty(SHAPES[layer])
        quarters = list(whole.chunk(RANKS))
        dist.all_gather(quarters, self.weights[layer])
        self.gathered[layer] = whole

    def forward(self, layer: int) -> None:
        """Run the layer on the rank's own samples, then drop the gathered weight."""
        x = self.activations[layer]
        y = product(layer, x, self.gathered.pop(layer))
        self.activations[layer + 1] = y

    def backward(self, layer: int) -> None:
        """Gradient of the rank's own samples, of the whole weight; drop the gathered weight."""
        dy = self.activations.pop(layer + 1)
        if layer == LAYERS - 1:
            dy = output_gradient(dy, self.target)
        x = self.activations.pop(layer)
        weight = self.gathered.pop(layer)
        self.gradients[layer] = x.T @ dy
        if layer > 0:
            dx = input_gradient(x, weight, dy)
            self.activations[layer] = dx

    def reduce(self, layer: int) -> None:
        """Reduce-scatter: every rank keeps a quarter of the sum over all samples."""
        quarter = torch.empty_like(self.weights[layer])
        quarters = self.gradients[layer].chunk(RANKS)
        dist.reduce_scatter(quarter, list(quarters))
        self.gradients[layer] = quarter


if __name__ == "__main__":
    run(Zero3)
