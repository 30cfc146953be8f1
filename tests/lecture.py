"""Four ranks run the lecture's code: every tensor and every collective, counted after each call.

python -m tests.lecture     # writes docs/lecture/recorded.json
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from planner.cost.network.collective_table import bus_factor
from planner.validate.ranks.launch import launch
from tests import ROOT

FOLDER = ROOT / "docs" / "lecture"
KEPT = FOLDER / "recorded.json"
RANKS, LAYERS, BATCH = 4, 4, 32
WEIGHTS = [(64, 256), (256, 64), (64, 256), (256, 64)]
ACTIVATIONS = [(BATCH, size) for size in (64, 256, 64, 256, 64)]
CLASSES = {
    "ddp": "DataParallel",
    "zero3": "Zero3",
    "tensor_parallel": "TensorParallel",
    "pipeline": "PipelineParallel",
}
STEPS = 2
TOLERANCE = 1e-5
CALLS = (
    *("start", "load", "gather", "forward", "backward", "reduce", "reduce_gradient", "update"),
)
KINDS = ("weights", "gathered", "gradients", "moments", "activations")

Reference = dict[str, list[Any]]


def run_alone(steps: int) -> tuple[list[Any], Reference]:
    """Train with autograd and torch's Adam in one process. Returns weights, last step's tensors."""
    import torch

    shared = module("shared")

    weights = [weight.requires_grad_() for weight in shared.initial_weights()]
    adam = torch.optim.Adam(weights, lr=1e-3, eps=1e-5)
    tensors: Reference = {}
    for step in range(steps):
        before = [weight.detach().clone() for weight in weights]
        x, target = shared.samples(step)
        inputs, products = [x], []
        for layer, weight in enumerate(weights):
            products.append(inputs[-1] @ weight)
            products[-1].retain_grad()
            inputs.append(products[-1].relu() if layer < LAYERS - 1 else products[-1])
        adam.zero_grad()
        torch.nn.functional.mse_loss(inputs[-1], target).backward()
        tensors = {
            "before": before,
            "gradients": [weight.grad.clone() for weight in weights],  # type: ignore[union-attr]
            "activations": [each.detach() for each in inputs],
            "flow": [torch.zeros_like(x), *(each.grad for each in products)],
        }
        adam.step()
    return [weight.detach() for weight in weights], tensors


def module(name: str) -> Any:
    """Import a file of the lecture as its own scripts do: by its name, from its folder."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


def full_shape(kind: str, layer: int) -> tuple[int, int]:
    """Shape of the whole tensor that a piece is a part of."""
    return (ACTIVATIONS if kind == "activations" else WEIGHTS)[layer]


def part(tensor: Any, full: tuple[int, int], number: int) -> list[int]:
    """First and last row and column of a part: the whole, or that of a rank or micro-batch."""
    box = []
    for held, whole in zip(tensor.shape, full, strict=True):
        start = 0 if held == whole else number * held
        box += [start, start + held]
    return box


def near(tensor: Any, block: Any, whole: Any) -> bool:
    """True if a tensor is the block, to the tolerance times the whole's largest element."""
    return float((tensor - block).abs().max()) <= TOLERANCE * float(whole.abs().max())


class Watch:
    """Records one rank: after every call what it holds, and what the call sent."""

    def __init__(self, state: Any) -> None:
        self.state, self.calls = state, []  # type: ignore[var-annotated]
        self.weights, self.tensors = run_alone(1)
        for name in CALLS:
            if hasattr(state, name):
                setattr(state, name, self._watched(name, getattr(state, name)))

    def _watched(self, name: str, method: Callable[..., None]) -> Callable[..., None]:
        import torch.distributed as dist

        from planner.validate.sharding.recorders import CollectiveRecorder

        def call(*arguments: int) -> None:
            recorder = CollectiveRecorder()
            with recorder, mock.patch.object(dist, "send", wraps=dist.send) as send:
                method(*arguments)
            to = [made.args[1] for made in send.call_args_list]
            sent = [
                [each.name, each.count, each.bytes, wire(each.name, each.bytes), to or each.ranks]
                for each in recorder.operations()
                if each.name != "receive"
            ]
            held = [piece for kind in KINDS for piece in self._pieces(kind)]
            number = () if name == "load" else arguments
            self.calls.append({"call": [name, *number], "held": held, "sent": sent})

        return call

    def _pieces(self, kind: str) -> list[list[Any]]:
        pieces = []
        for key, value in getattr(self.state, kind).items():
            layer, number = key if isinstance(key, tuple) else (key, self.state.rank)
            copies = len(value) if isinstance(value, tuple) else 1
            tensor = value[0] if isinstance(value, tuple) else value
            size = copies * tensor.nbytes
            box = part(tensor, full_shape(kind, layer), number)
            pieces.append([kind, layer, *box, self._condition(kind, layer, tensor, box), size])
        return sorted(pieces)

    def _condition(self, kind: str, layer: int, tensor: Any, box: list[int]) -> str:
        """`whole` or `gradient` if the piece is that part of the single process's, else `sum`."""
        if kind == "moments":
            return "whole"
        rows, columns = slice(box[0], box[1]), slice(box[2], box[3])
        results = {"whole": self.tensors.get(kind, []), "gradient": []}
        if kind in ("weights", "gathered"):
            results = {"whole": self.tensors["before"], "gradient": self.weights}
        elif kind == "activations":
            results["gradient"] = self.tensors["flow"]
        for word, wholes in results.items():
            if wholes and near(tensor, wholes[layer][rows, columns], wholes[layer]):
                return "whole" if kind in ("weights", "gathered") else word
        assert tuple(tensor.shape) == full_shape(kind, layer), (kind, layer, box)
        return "sum"


def wire(operation: str, size: int) -> int:
    """Bytes that leave a rank in a ring of all ranks [B]."""
    return round(size * bus_factor("send_recv" if operation == "send" else operation, RANKS))


def record(rank: Any, payload: dict[str, Any], send: Any) -> dict[str, Any]:
    """Run all strategies on this rank: records, and the largest error after some steps."""
    from planner.validate.ranks.rank import joined

    results: dict[str, Any] = {}
    expected, _ = run_alone(STEPS)
    with joined(rank):
        for file, name in CLASSES.items():
            strategy = getattr(module(file), name)
            watched = strategy(rank.rank)
            watch = Watch(watched)
            watched.start()
            watched.step(0)
            other = strategy(rank.rank)
            other.start()
            for step in range(STEPS):
                other.step(step)
            error = 0.0
            for layer, weight in other.weights.items():
                box = part(weight, WEIGHTS[layer], rank.rank)
                block = expected[layer][box[0] : box[1], box[2] : box[3]]
                error = max(error, float((weight - block).abs().max()))
            results[file] = {"calls": watch.calls, "error": error}
    return results


def recorded() -> tuple[dict[str, Any], dict[str, float]]:
    """Run four ranks: the records of all ranks by strategy and call, and the largest errors."""
    ranks = launch("tests.lecture:record", RANKS, {}, limit_s=120)
    records = {
        name: [
            {
                "call": calls[0]["call"],
                "ranks": [{"held": c["held"], "sent": c["sent"]} for c in calls],
            }
            for calls in zip(*(rank[name]["calls"] for rank in ranks), strict=True)
        ]
        for name in CLASSES
    }
    return records, {name: max(rank[name]["error"] for rank in ranks) for name in CLASSES}


def written(records: dict[str, Any]) -> str:
    """Return the records as JSON, a call a line."""
    shapes = {"weights": WEIGHTS, "activations": ACTIVATIONS}
    parts = [f'"shapes": {json.dumps(shapes)}']
    for name, calls in records.items():
        lines = ",\n".join(json.dumps(call, separators=(",", ":")) for call in calls)
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    KEPT.write_text(written(recorded()[0]), encoding="utf-8")
