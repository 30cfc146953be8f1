"""Data parallel, by hand: every rank has the whole model and a quarter of the batch."""

import torch.distributed as dist
from shared import (
    LAYERS,
    RankState,
    initial_weights,
    input_gradient,
    output_gradient,
    product,
    run,
)


class DataParallel(RankState):
    """One rank of data parallelism."""

    def step(self, number: int) -> None:
        """One training step."""
        self.load(number)
        self.forward()
        self.backward()
        self.reduce()
        self.update()

    def start(self) -> None:
        """Every rank holds the whole model and Adam's two states of it."""
        for layer, weight in enumerate(initial_weights()):
            self.hold(layer, weight)

    def forward(self) -> None:
        """Every rank runs the whole model on its samples and keeps every layer's input."""
        for layer in range(LAYERS):
            x = self.activations[layer]
            y = product(layer, x, self.weights[layer])
            self.activations[layer + 1] = y

    def backward(self) -> None:
        """Gradients of the rank's own samples: they differ from rank to rank."""
        y = self.activations.pop(LAYERS)
        dy = output_gradient(y, self.target)
        for layer in reversed(range(LAYERS)):
            x = self.activations.pop(layer)
            self.gradients[layer] = x.T @ dy
            dy = input_gradient(x, self.weights[layer], dy)

    def reduce(self) -> None:
        """All-reduce: afterwards every rank has the gradient of the whole batch."""
        for layer in range(LAYERS):
            dist.all_reduce(self.gradients[layer])


if __name__ == "__main__":
    run(DataParallel)
