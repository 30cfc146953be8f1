"""Tensor parallel, by hand: every rank has a quarter of every matrix and the whole batch."""

import torch.distributed as dist
from shared import (
    LAYERS,
    RANKS,
    RankState,
    initial_weights,
    input_gradient,
    output_gradient,
    product,
    run,
    samples,
)


class TensorParallel(RankState):
    """One rank of tensor parallelism: even layers cut by columns, odd ones by rows."""

    def step(self, number: int) -> None:
        """One training step."""
        self.load(number)
        for layer in range(0, LAYERS, 2):
            self.forward(layer)
            self.reduce(layer)
        for layer in range(LAYERS - 2, -1, -2):
            self.backward(layer)
            if layer > 0:
                self.reduce_gradient(layer)
        self.update()

    def start(self) -> None:
        """Cut by columns, then by rows: between the two, nothing has to be sent."""
        for layer, weight in enumerate(initial_weights()):
            quarters = weight.chunk(RANKS, dim=1 - layer % 2)
            self.hold(layer, quarters[self.rank])

    def load(self, step: int) -> None:
        """Every rank reads the whole batch."""
        self.activations[0], self.target = samples(step)

    def forward(self, layer: int) -> None:
        """Two layers: a quarter of the hidden columns, then a part of every output's sum."""
        x = self.activations[layer]
        hidden = product(layer, x, self.weights[layer])
        self.activations[layer + 1] = hidden
        part = hidden @ self.weights[layer + 1]
        self.activations[layer + 2] = part

    def reduce(self, layer: int) -> None:
        """All-reduce of activations: every rank gets the whole output of the two layers."""
        y = self.activations[layer + 2]
        dist.all_reduce(y)
        if layer + 2 < LAYERS:
            y.relu_()

    def backward(self, layer: int) -> None:
        """Gradients of the rank's quarters; the input's gradient is a part of a sum again."""
        dy = self.activations.pop(layer + 2)
        if layer + 2 == LAYERS:
            dy = output_gradient(dy, self.target)
        for each in (layer + 1, layer):
            x = self.activations.pop(each)
            self.gradients[each] = x.T @ dy
            dy = input_gradient(x, self.weights[each], dy)
        if layer > 0:
            self.activations[layer] = dy

    def reduce_gradient(self, layer: int) -> None:
        """All-reduce of the input's gradient, on its way to the layers below."""
        dist.all_reduce(self.activations[layer])


if __name__ == "__main__":
    run(TensorParallel)
