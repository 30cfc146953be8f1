"""Recorders: collectives and storages of a step with exact bytes, which torch's own (2.13) lack."""

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from planner.validate.sharding import adapter

_NAMESPACES = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
_SKIPPED = {"wait_tensor", "_wrap_tensor_autograd", "monitored_barrier_", "barrier"}
_KINDS = (
    *("reduce_scatter", "all_gather", "all_reduce", "all_to_all", "broadcast"),
    *("recv", "send", "scatter", "gather", "reduce"),
)
"""Names of operations, matched without underscores; the first match counts."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """One kind of operation over one group of ranks."""

    name: str
    ranks: tuple[int, ...]
    count: int
    bytes: int
    """Full buffers: the gathered tensor, or the tensor before it is reduced or scattered."""


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_iter(value) if isinstance(leaf, torch.Tensor)]


def _buffer(kind: str, functional: bool, args: tuple[Any, ...], result: Any) -> int:
    """Bytes of an operation's full buffer; c10d operations take the output first [B]."""
    value = args[0]
    if kind == "all_gather" and functional:
        value = result
    elif kind == "reduce_scatter" and not functional:
        value = args[1]
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(value))


class CollectiveRecorder(TorchDispatchMode):
    """Counts collectives below autograd and DTensor, where the calls of every framework arrive."""

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
        plain = name.replace("_", "")
        kind = next((kind for kind in _KINDS if kind.replace("_", "") in plain), name)
        kind = "receive" if kind == "recv" else kind
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
        """List the recorded operations in a fixed order."""
        return tuple(
            Recorded(name, ranks, self._count[name, ranks], self._bytes[name, ranks])
            for name, ranks in sorted(self._count)
        )


class Direction(Enum):
    """Direction of a phase: before the step, forward, backward, optimizer, or after it."""

    BEFORE = "before"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    END = "end"


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a step: direction and part of the model."""

    direction: Direction
    part: str = ""
    """Part of the model that is running; empty outside the model."""

    def __str__(self) -> str:
        return f"{self.direction.value} {self.part}".rstrip()


BEFORE = Phase(Direction.BEFORE)


@dataclass(frozen=True, slots=True)
class StorageEvent:
    """A storage changed to `bytes` (0: freed) in a phase and region."""

    key: int
    bytes: int
    phase: Phase
    region: adapter.Region | None


class StorageTimeline(TorchDispatchMode):
    """Follows storages from first use to release; views of one storage count once."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[StorageEvent] = []
        self.phase: Phase = BEFORE
        self.region: adapter.Region | None = None
        self._keys: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._waited: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._next = 0
        self.moments: dict[str, int] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Any:
        timeline, original = self, self._resize

        def resize(storage: Any, size: int) -> Any:
            result = original(storage, size)
            timeline._seen(storage, resized=True)
            return result

        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign, assignment]
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*exception)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            if func.__name__.startswith("wait_tensor"):
                self._wait(args[0].untyped_storage(), tensor.untyped_storage())
            self.watch(tensor)
        return result

    def _wait(self, sent: Any, result: Any) -> None:
        """Count a wait and its result as one storage: only the fake operator copies it."""
        if result is not sent:
            self._keys[result] = self._seen(sent)
            self._waited[result] = sent

    def watch(self, tensor: torch.Tensor) -> int:
        """Follow a tensor's storage. Returns its key."""
        if isinstance(tensor, DTensor):
            tensor = tensor.to_local()
        if isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.elem  # the wrapper's own storage holds no memory
        return self._seen(tensor.untyped_storage())

    def _seen(self, storage: Any, resized: bool = False) -> int:
        key = self._keys.get(storage)
        if key is None:
            key, self._next = self._next, self._next + 1
            self._keys[storage] = key
            weakref.finalize(storage, self._note, key, 0)
        elif not resized:
            return key
        self._note(key, storage.nbytes())
        return key

    def _note(self, key: int, size: int) -> None:
        self.events.append(StorageEvent(key, size, self.phase, self.region))

    @contextlib.contextmanager
    def within(self, region: adapter.Region) -> Iterator[None]:
        """Assign the storages allocated inside to `region`."""
        before, self.region = self.region, region
        try:
            yield
        finally:
            self.region = before

    def restart(self) -> None:
        """Forget all events so far; storages seen again get new keys."""
        self.events.clear()
        self._keys.clear()

    def moment(self, name: str) -> None:
        """Store the current position in the events under a name."""
        self.moments[name] = len(self.events)

    def live(self, until: int) -> list[StorageEvent]:
        """Latest allocation event of each storage that is alive after `until` events."""
        storages: dict[int, StorageEvent] = {}
        for event in self.events[:until]:
            if event.bytes:
                storages[event.key] = event
            else:
                storages.pop(event.key, None)
        return list(storages.values())

    def peaks(self, start: int, stop: int) -> dict[Phase, tuple[int, int]]:
        """Peak of live bytes in each phase, and the number of events until it."""
        sizes: dict[int, int] = {}
        total = 0
        best: dict[Phase, tuple[int, int]] = {}
        for index, event in enumerate(self.events[:stop]):
            # if a phase starts with a release, the total before it counts
            before, total = total, total + event.bytes - sizes.get(event.key, 0)
            sizes[event.key] = event.bytes
            if index < start:
                continue
            if event.phase not in best:
                best[event.phase] = (before, index)
            if total > best[event.phase][0]:
                best[event.phase] = (total, index + 1)
        return best
