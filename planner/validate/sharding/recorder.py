"""Recorder: every collective and message that a step issues, with group, count and bytes."""

# torch leaves some of its functions untyped
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from planner.validate.sharding import adapter

__all__ = ["CollectiveRecorder", "Recorded"]

_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
_SKIPPED = {"wait_tensor", "_wrap_tensor_autograd", "monitored_barrier_", "barrier"}
_KINDS = (
    ("reduce_scatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("all_gather", "all_gather"),
    ("allreduce", "all_reduce"),
    ("all_reduce", "all_reduce"),
    ("alltoall", "all_to_all"),
    ("all_to_all", "all_to_all"),
    ("broadcast", "broadcast"),
    ("recv", "receive"),
    ("send", "send"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("reduce", "reduce"),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """One kind of operation over one group of ranks."""

    name: str
    ranks: tuple[int, ...]
    count: int
    bytes: int
    """Full buffers: the gathered tensor, or the tensor before it is reduced or scattered."""


def _size(value: Any) -> int:
    tensors: list[torch.Tensor] = []
    _collect(value, tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _collect(value: Any, tensors: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    elif isinstance(value, list | tuple):
        for item in value:
            _collect(item, tensors)


def _buffer(kind: str, functional: bool, args: tuple[Any, ...], result: Any) -> int:
    if kind == "all_gather":
        return _size(result) if functional else _size(args[0])
    if kind == "reduce_scatter":
        return _size(args[0]) if functional else _size(args[1])
    return _size(args[0])


class CollectiveRecorder(TorchDispatchMode):
    """Counts collectives below autograd and DTensor, where every framework passes."""

    def __init__(self) -> None:
        super().__init__()
        self._count: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._bytes: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        name = func._opname if hasattr(func, "_opname") else func.__name__.split(".")[0]
        if func.namespace in _NAMESPACES and name not in _SKIPPED:
            self._record(func, name, args, kwargs or {}, result)
        return result

    def _record(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        kind = next((canonical for prefix, canonical in _KINDS if prefix in name), name)
        functional = func.namespace != "c10d"
        ranks: tuple[int, ...] = ()
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.ScriptObject):
                try:
                    ranks = adapter.group_ranks(value)
                    break
                except (RuntimeError, TypeError):
                    continue  # a reduction, not a group
            if isinstance(value, str) and functional and not value.islower():
                ranks = adapter.group_ranks(value)
                break
        if not ranks and functional:
            ranks = adapter.group_ranks(next(v for v in reversed(args) if isinstance(v, str)))
        key = (kind, ranks)
        self._count[key] += 1
        self._bytes[key] += _buffer(kind, functional, args, result)

    def operations(self) -> tuple[Recorded, ...]:
        """What was recorded, in a fixed order."""
        return tuple(
            Recorded(name, ranks, self._count[name, ranks], self._bytes[name, ranks])
            for name, ranks in sorted(self._count)
        )
