"""One pass of a module: sizes of its products, bytes of its kernels, what it saves."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from planner.describe.model.traced_file import TracedOperation
from planner.errors import DescriptionError
from planner.validate.trace.module_record import Record, record
from planner.validate.trace.user_module import Sample

pytestmark = pytest.mark.filterwarnings("ignore")


class _Apply(nn.Module):
    """A function of one input, with a trainable vector that multiplies its result."""

    def __init__(self, function: Any, *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.function(x, *self.parts) * self.scale
        return out


def _operation(function: Any, shape: tuple[int, ...], *parts: nn.Module) -> TracedOperation:
    """The only product of a function on a batch of 2."""
    ((_, operation),) = _record(function, shape, *parts).operations
    return operation


def _record(function: Any, shape: tuple[int, ...], *parts: nn.Module) -> Record:
    return record(_Apply(function, *parts), Sample({0: torch.empty(shape)}), 2, autocast=False)


def _through(x: Tensor, part: nn.Module) -> Tensor:
    out: Tensor = part(x)
    return out


@pytest.mark.parametrize(
    ("part", "shape", "expected"),
    [
        (nn.Linear(8, 5), (3, 8), {"rows": 6, "n": 5, "k": 8}),
        (nn.Linear(8, 5, bias=False), (3, 8), {"rows": 6, "n": 5, "k": 8}),
        # 2 x 5 x 7 positions; a sum over 4 channels of 3 x 3
        (
            nn.Conv2d(4, 6, 3, padding=1),
            (4, 5, 7),
            {"rows": 70, "n": 6, "k": 36, "inputs": 280, "small_kernel": True},
        ),
        # 3 x 3 with stride 2, with dilation 2, in groups: other kernels
        (
            nn.Conv2d(4, 6, 3, stride=2, padding=1),
            (4, 5, 7),
            {"rows": 24, "n": 6, "k": 36, "inputs": 280},
        ),
        (
            nn.Conv2d(4, 6, 3, padding=2, dilation=2),
            (4, 5, 7),
            {"rows": 70, "n": 6, "k": 36, "inputs": 280},
        ),
        (
            nn.Conv2d(4, 6, 3, padding=1, groups=2),
            (4, 5, 7),
            {"rows": 140, "n": 3, "k": 18, "inputs": 280},
        ),
        (nn.Conv2d(4, 6, 1), (4, 5, 7), {"rows": 70, "n": 6, "k": 4, "inputs": 280}),
        # transposed: every input position makes 6 x 2 x 2 sums of its 4 channels
        (nn.ConvTranspose2d(4, 6, 2, stride=2), (4, 5, 7), {"rows": 70, "n": 24, "k": 4}),
    ],
)
def test_sizes_of_products(
    part: nn.Module, shape: tuple[int, ...], expected: dict[str, Any]
) -> None:
    operation = _operation(_through, shape, part)
    kind = "product" if isinstance(part, nn.Linear) else "convolution"
    # the input of the module needs no gradient, the weight does
    fields = {"kind": kind, "input_gradient": False, **expected}
    assert operation == TracedOperation(**fields)
    assert operation.flop == 2 * expected["rows"] * expected["n"] * expected["k"]


@pytest.mark.parametrize("causal", [True, False])
def test_sizes_of_attention(causal: bool) -> None:
    def attend(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=causal)

    assert _operation(attend, (3, 10, 8)) == TracedOperation(
        kind="attention", rows=10, n=10, k=8, values=8, copies=6, causal=causal
    )


def test_products_of_batches_have_copies() -> None:
    shape = {"rows": 5, "n": 5, "k": 8, "copies": 2}
    gradients = {"input_gradient": False, "weight_gradient": False}
    operation = _operation(lambda x: x @ x.transpose(1, 2), (5, 8))
    assert operation == TracedOperation(kind="product", **shape, **gradients)


def test_a_kernel_moves_what_it_reads_and_writes() -> None:
    kernels = _record(lambda x: x, (10,)).kernels
    forward = [kernel.bytes for kernel in kernels if not kernel.backward]
    # 20 elements and the vector of one in, 20 out; their sum, and the loss of that one sum
    assert forward == [4 * (20 + 1 + 20), 4 * (20 + 1), 4 * (1 + 1), 4 * (1 + 1)]


def test_statistics_of_a_norm_read_its_input_twice() -> None:
    norm = nn.BatchNorm1d(5)
    record_of = _record(_through, (5,), norm)
    largest = max(kernel.bytes for kernel in record_of.kernels if not kernel.backward)
    # twice: input, weight, bias, running mean and variance; once: output, its mean and variance
    assert largest == 4 * (2 * (10 + 4 * 5) + 10 + 2 * 5)


def test_what_is_saved_is_the_input_of_a_product_and_is_counted_once() -> None:
    saved = _record(_through, (8,), nn.Linear(8, 5)).saved
    # the loss, the result that the vector multiplies, the input of the product
    assert sorted(tensor.bytes for tensor in saved if not tensor.result) == [
        4,
        4 * 2 * 5,
        4 * 2 * 8,
    ]
    assert [tensor.bytes for tensor in saved if tensor.result] == [4 * 2 * 5]
    assert all(tensor.real for tensor in saved)


def test_memory_of_backward_ends_with_the_gradients() -> None:
    trace = _record(_through, (8,), nn.Linear(8, 5))
    # backward adds gradients of weight, bias and vector, and frees both saved operands
    left = sum(growth for _, growth in trace.changes)
    assert left == 4 * (8 * 5 + 5 + 1) - 4 * (2 * 8 + 2 * 5)


class _Both(nn.Module):
    """Outputs and a loss, of different parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Any:
        return self.a(x), self.b(x).sum()


def test_the_first_scalar_is_the_loss() -> None:
    trace = record(_Both(), Sample({0: torch.empty(4)}), 2, autocast=False)
    # gradients of b alone; the other output still keeps the input
    assert sum(growth for _, growth in trace.changes) == 4 * (4 + 1)


def test_a_module_without_parameters_has_nothing_to_train() -> None:
    with pytest.raises(DescriptionError, match="nothing to train"):
        record(nn.Identity(), Sample({0: torch.empty(4)}), 2, autocast=False)
