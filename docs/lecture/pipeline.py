"""Pipeline parallel, by hand: every rank has one layer, and four micro-batches pass through."""

import torch
import torch.distributed as dist
from shared import (
    LAYERS,
    RANKS,
    ROWS,
    SHAPES,
    RankState,
    initial_weights,
    input_gradient,
    output_gradient,
    product,
    run,
    samples,
)


class PipelineParallel(RankState):
    """One rank, and so one stage, of a pipeline (GPipe); activations by micro-batch."""

    def step(self, number: int) -> None:
        """One training step."""
        self.load(number)
        for tick in range(2 * RANKS - 1):
            self.forward(tick)
        for tick in range(2 * RANKS - 1):
            self.backward(tick)
        self.update()

    def start(self) -> None:
        """Every rank holds one layer and Adam's two states of it."""
        self.hold(self.rank, initial_weights()[self.rank])

    def load(self, step: int) -> None:
        """The first rank reads the inputs, in four micro-batches."""
        inputs, target = samples(step)
        self.targets = target.split(ROWS)
        if self.rank == 0:
            for number, x in enumerate(inputs.split(ROWS)):
                self.activations[0, number] = x.clone()

    def forward(self, tick: int) -> None:
        """Receive a micro-batch, run the layer, send the output on; idle ranks wait."""
        rank = self.rank
        number = tick - rank
        if not 0 <= number < RANKS:
            return  # the bubble
        if rank > 0:
            x = torch.empty(ROWS, SHAPES[rank][0])
            dist.recv(x, rank - 1)
            self.activations[rank, number] = x
        x = self.activations[rank, number]
        y = product(rank, x, self.weights[rank])
        if rank == RANKS - 1:
            self.activations[LAYERS, number] = y
        else:
            dist.send(y, rank + 1)

    def backward(self, tick: int) -> None:
        """The way back: receive a gradient, compute the layer's, send the input's."""
        rank = self.rank
        number = tick - (RANKS - 1 - rank)
        if not 0 <= number < RANKS:
            return  # the bubble
        if rank == RANKS - 1:
            y = self.activations.pop((LAYERS, number))
            dy = output_gradient(y, self.targets[number])
        else:
            dy = torch.empty(ROWS, SHAPES[rank][1])
            dist.recv(dy, rank + 1)
        x = self.activations.pop((rank, number))
        total = self.gradients.get(rank, 0)
        self.gradients[rank] = total + x.T @ dy
        if rank > 0:
            dx = input_gradient(x, self.weights[rank], dy)
            dist.send(dx, rank - 1)


if __name__ == "__main__":
    run(PipelineParallel)
