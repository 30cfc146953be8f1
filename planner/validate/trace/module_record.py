"""Record: one forward and backward pass of a module on tensors without data."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from planner.describe.model.traced_file import TracedOperation
from planner.errors import DescriptionError
from planner.validate.sharding.recorders import Direction, Phase, StorageTimeline
from planner.validate.trace.user_module import Places, Sample, accelerator_kernels

_EMPTY = ("empty", "new_empty", "lift_fresh", "_assert", "is_same_size")
"""Prefixes of operations that move no data."""


aten: Any = torch.ops.aten
_STATISTICS = {
    *(aten.native_batch_norm, aten.native_batch_norm_backward),
    *(aten.native_group_norm, aten.native_group_norm_backward),
}
"""Norms whose statistics need a separate pass over the input."""


def _mm(args: Any, *_: Any) -> TracedOperation:
    first, second = args[-2:]
    (m, k), n = first.shape, second.shape[1]
    return TracedOperation(kind="product", rows=m, n=n, k=k, **_gradients(first, second))


def _bmm(args: Any, *_: Any) -> TracedOperation:
    first, second = args[-2:]
    (copies, m, k), n = first.shape, second.shape[2]
    return TracedOperation(
        kind="product", rows=m, n=n, k=k, copies=copies, **_gradients(first, second)
    )


def _convolution(args: Any, _: Any, out: Tensor) -> TracedOperation:
    x, weight, _, stride, _, dilation, transposed, _, groups = args[:9]
    # a transposed convolution is the gradient of a plain one: its rows are its input positions
    image = x if transposed else out
    inside, n = math.prod(weight.shape[1:]), weight.shape[0] // groups
    small = not transposed and groups == 1 and tuple(weight.shape[2:]) == (3, 3)
    return TracedOperation(
        kind="convolution",
        rows=image.numel() // image.shape[1] * groups,
        n=inside if transposed else n,
        k=n if transposed else inside,
        inputs=0 if transposed else x.numel(),
        small_kernel=small and {*stride, *dilation} == {1},
        **_gradients(x, weight),
    )


def _attention(args: Any, keywords: Any, _: Any) -> TracedOperation:
    q, k, v = args[:3]
    causal = keywords.get("is_causal", args[4] if len(args) > 4 else False)
    return TracedOperation(
        kind="attention",
        rows=q.shape[-2],
        n=k.shape[-2],
        k=q.shape[-1],
        copies=math.prod(q.shape[:-2]),
        values=v.shape[-1],
        causal=bool(causal),
    )


def _gradients(first: Tensor, second: Tensor) -> dict[str, Any]:
    return {"input_gradient": first.requires_grad, "weight_gradient": second.requires_grad}


FORWARD: dict[Any, Callable[[Any, Any, Tensor], TracedOperation]] = {
    aten.mm: _mm,
    aten.addmm: _mm,
    aten.bmm: _bmm,
    aten.baddbmm: _bmm,
    aten.convolution: _convolution,
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
}
"""Torch operations that are products, and functions that read their sizes from a call."""

BACKWARD = frozenset(
    (aten.convolution_backward, aten._scaled_dot_product_flash_attention_for_cpu_backward)
)
"""Gradients of those products that are separate operations."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A memory-bound kernel: its place, its pass, and the bytes that it reads and writes."""

    place: str
    backward: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A storage that is alive when the backward pass starts."""

    place: str
    bytes: int
    real: bool
    """True if it holds floating-point numbers, whose size depends on the precision."""
    result: bool
    """True if only the caller of forward holds it."""


@dataclass(slots=True)
class Record:
    """Operations, kernels and memory of one forward and backward pass."""

    operations: list[tuple[str, TracedOperation]] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    saved: list[SavedTensor] = field(default_factory=list)
    changes: list[tuple[str, int]] = field(default_factory=list)
    """Place and growth of memory, event by event, in the backward pass."""
    order: list[str] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)
    uses: dict[int, list[str]] = field(default_factory=dict)
    """Places where each parameter is used, by its id."""


class _Recorder(TorchDispatchMode):
    """Records the products and kernels of every operation; FlopCounterMode gives only sums."""

    def __init__(self, trace_record: Record, places: Places, timeline: StorageTimeline) -> None:
        super().__init__()
        self.trace_record, self.places, self.timeline = trace_record, places, timeline
        self.backward = False
        self.place_of_backward = places.LAST
        self.parameters: dict[int, int] = {}
        """Id of each parameter, by the key of its storage."""
        self.copies: set[int] = set()
        """Keys of the storages that are autocast's copies of parameters."""
        self.real: dict[int, bool] = {}
        self.hooked: dict[int, str] = {}
        """Place of each tensor that autograd saves, by the key of its storage."""

    def pack(self, tensor: Tensor) -> tuple[Tensor, str]:
        """Save a tensor for backward, with its place."""
        self.hooked.setdefault(self.timeline.watch(tensor), self.places.now)
        return tensor, self.places.now

    def unpack(self, packed: tuple[Tensor, str]) -> Tensor:
        """Return a saved tensor, and set the place of backward to the one that saved it."""
        tensor, self.place_of_backward = packed
        self.timeline.phase = Phase(Direction.BACKWARD, self.place_of_backward)
        return tensor

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace == "prim":
            return result
        packet = func.overloadpacket
        inputs = [value for value in tree_iter((args, kwargs)) if isinstance(value, Tensor)]
        outputs = [value for value in tree_iter(result) if isinstance(value, Tensor)]
        before = {self._key(value) for value in inputs}
        after = {self._key(value) for value in outputs}
        if not self.backward:
            self._assign_places(before)
        if packet in FORWARD or packet in BACKWARD:
            if not self.backward:
                operation = FORWARD[packet](args, kwargs, outputs[0])
                self.trace_record.operations.append((self.places.now, operation))
        elif packet in flop_registry:
            raise DescriptionError(
                f"the planner does not know the operation {packet} and cannot count its FLOP; "
                "write it as products, convolutions or scaled_dot_product_attention"
            )
        elif packet is torch.ops.aten._to_copy and before <= {*self.parameters, *self.copies}:
            # once per batch, and not among the kernels that host overheads were calibrated with
            self.copies |= after
        elif outputs and (func._schema.is_mutable or not after <= before):
            self._add_kernel(packet, inputs, outputs)
        return result

    def _add_kernel(self, packet: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        if packet._qualified_op_name.split("::")[-1].startswith(_EMPTY):
            return
        place = self.place_of_backward if self.backward else self.places.now
        moved_bytes = sum(map(_size, [*inputs, *outputs]))
        if packet in _STATISTICS:
            # the statistics of a norm are a separate pass over the inputs
            moved_bytes += sum(map(_size, inputs))
        self.trace_record.kernels.append(Kernel(place, self.backward, moved_bytes))

    def _key(self, tensor: Tensor) -> int:
        key = self.timeline.watch(tensor)
        self.real.setdefault(key, tensor.is_floating_point() or tensor.is_complex())
        return key

    def _assign_places(self, keys: set[int]) -> None:
        for key in keys & self.parameters.keys():
            places = self.trace_record.uses.setdefault(self.parameters[key], [])
            if self.places.now not in places:
                places.append(self.places.now)


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor that a kernel moves; an expanded tensor is read once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def record(module: nn.Module, sample: Sample, batch: int, *, autocast: bool) -> Record:
    """Record one pass of a module; the loss is its first scalar result, else the sum of all."""
    timeline, trace_record = StorageTimeline(), Record()

    def moved(place: str) -> None:
        timeline.phase = Phase(Direction.FORWARD, place)

    places = Places(module, moved)
    recorder = _Recorder(trace_record, places, timeline)
    handles = list(places.hook())
    args, kwargs = sample.batch(batch)
    with contextlib.ExitStack() as stack:
        stack.enter_context(timeline)
        stack.enter_context(recorder)
        stack.callback(lambda: [handle.remove() for handle in handles])
        for parameter in module.parameters():
            recorder.parameters[recorder._key(parameter)] = id(parameter)
        resident = {recorder._key(t) for t in (*module.parameters(), *module.buffers())}
        inputs = {recorder._key(value) for value in (*args, *kwargs.values())}
        stack.enter_context(saved_tensors_hooks(recorder.pack, recorder.unpack))
        with accelerator_kernels(autocast=autocast):
            # a training loop holds the results of forward until the next step
            result = module(*args, **kwargs)
            results = {recorder._key(v) for v in tree_iter(result) if isinstance(v, Tensor)}
            loss = _loss(result)
        del args, kwargs
        recorder.backward = True
        timeline.phase = Phase(Direction.BACKWARD, places.LAST)
        timeline.moment("backward")
        loss.backward()
        timeline.moment("stop")
        del result
    _read(recorder, resident, inputs, results)
    module.zero_grad(set_to_none=True)
    trace_record.order, trace_record.widths = [*places.order, places.LAST], places.widths
    return trace_record


def _loss(result: Any) -> Tensor:
    tensors = [v for v in tree_iter(result) if isinstance(v, Tensor) and v.requires_grad]
    for value in tensors:
        if value.numel() == 1:
            return value
    if not tensors:
        raise DescriptionError(
            "forward returned no tensor that depends on a trainable parameter, so that there is "
            "nothing to train; return the loss, or the outputs"
        )
    return torch.stack([value.float().sum() for value in tensors]).sum()


def _read(recorder: _Recorder, resident: set[int], inputs: set[int], results: set[int]) -> None:
    """Read the tensors saved for backward, and the changes of memory during backward."""
    timeline, trace_record, hooked = recorder.timeline, recorder.trace_record, recorder.hooked
    start = timeline.moments["backward"]
    for live in timeline.live(start):
        if live.key in resident | recorder.copies:
            continue
        place = Places.FIRST if live.key in inputs else live.phase.part
        is_result = live.key in results and live.key not in hooked
        is_real = recorder.real.get(live.key, True)
        saved = SavedTensor(hooked.get(live.key, place), live.bytes, is_real, is_result)
        trace_record.saved.append(saved)
    sizes: dict[int, int] = {}
    for index, event in enumerate(timeline.events[: timeline.moments["stop"]]):
        growth = event.bytes - sizes.get(event.key, 0)
        sizes[event.key] = event.bytes
        if index >= start:
            trace_record.changes.append((event.phase.part, growth))
