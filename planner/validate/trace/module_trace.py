"""Module trace: FLOP, bytes and parameters of a user's module, per sample, from several batches."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from planner.describe.model.traced_file import TracedOperation
from planner.errors import DescriptionError, shorten, shorten_path
from planner.validate.sharding import adapter, own_module
from planner.validate.trace import user_module
from planner.validate.trace.module_record import Record, record

_BATCHES = (2, 4, 6)
"""Batch sizes: at least two, which batch norms need, and a third one to check linearity."""
_SIZES = ("rows", "n", "k", "copies")
_IGNORED_FIELDS = ("name", "working", "backward", "divided")
"""Fields that equal blocks may differ in: they depend on the blocks before and after."""


def trace_file(path: str, function: str, where_stated: str = "") -> dict[str, Any]:
    """Trace a function's module to the fields of a `Traced`; messages print `where_stated`."""
    where = f"{shorten_path(where_stated or path)}:{shorten(function)}"
    module, sample = user_module.build_module(path, function, where)
    with user_module.explain_user_errors(path, where):
        return trace_module(module, sample)


def trace_module(module: nn.Module, sample: user_module.Sample) -> dict[str, Any]:
    """Trace a module with one sample of its input. Returns the fields of a `Traced`."""
    version = adapter.require_torch()
    splits, no_tp = _tensor_splits(module)
    with adapter.fake_mode():
        user_module.materialise(module)
        module.train()
        plain = [record(module, sample, batch, autocast=False) for batch in _BATCHES]
        under = [record(module, sample, batch, autocast=True) for batch in _BATCHES[:2]]
        weights = _weights(module, plain[0], splits)
        buffers = sum(buffer.nbytes for buffer in module.buffers())
        cast = _cast(module, sample)
        halves = _halves(module, sample, splits)
    _check_linear(plain)
    units = plain[0].order[1:-1]
    no_pp = own_module.no_stages(module, units)
    if not halves:
        no_tp, splits = no_tp or "it runs only with its full widths", {}
    kinds = _operation_splits(plain[0], halves[0] if splits else plain[0], splits)
    figures = (_PerSample(plain[:2], kinds), _PerSample(under), _PerSample(cast) if cast else None)
    half = _PerSample(halves) if splits else figures[0]
    blocks = [
        _block(place, figures, weights.get(place, [])) | _divided(place, figures[0], half)
        for place in plain[0].order
    ]
    return {
        "blocks": _merge_blocks(blocks),
        "results": {
            "fp32": figures[0].held,
            "autocast": figures[1].held,
            "cast": figures[2].held if figures[2] else figures[0].held / 2,
        },
        "splits": [{"name": name, "kind": kind} for name, kind in splits.items()],
        "split_width": own_module.split_width(module, splits),
        "units": [] if no_pp else units,
        "no_tp": no_tp,
        "no_pp": no_pp,
        "cast_by_half": not cast,
        "buffer_bytes": float(buffers),
        "constant_bytes": float(sum(figures[0].constant.values())),
        "torch": version,
    }


def _tensor_splits(module: nn.Module) -> tuple[dict[str, str], str]:
    """Linear layers that tensor parallelism divides, or the reason why there are none."""
    try:
        splits = own_module.linear_splits(module)
    except Exception as error:
        return {}, f"torch.fx cannot trace its forward ({shorten(str(error), 80)})"
    if own_module.split_width(module, splits) % 2:
        return {}, "its Linear layers have odd widths"
    return splits, "" if splits else "it has no Linear layers of its own"


def _halves(module: nn.Module, sample: user_module.Sample, splits: dict[str, str]) -> list[Record]:
    """Records of one of two tensor-parallel ranks; empty if the module does not run as one."""
    user_module.materialise(module)
    own_module.halve(module, splits)
    try:
        return [record(module, sample, batch, autocast=False) for batch in _BATCHES[:2]]
    except RuntimeError:
        return []


def _operation_splits(full: Record, half: Record, splits: dict[str, str]) -> list[str]:
    """Split of every operation: the halved ones are the Linear layers, in the order of forward."""
    kinds = iter(splits.values())
    return [
        "replicated" if whole == part else next(kinds, "replicated")
        for (_, whole), (_, part) in zip(full.operations, half.operations, strict=True)
    ]


def _cast(module: nn.Module, sample: user_module.Sample) -> list[Record]:
    """Records with bf16 weights and inputs; empty if the module does not run with them."""
    narrow = sample.narrow()
    user_module.materialise(module, torch.bfloat16)
    try:
        return [record(module, narrow, batch, autocast=False) for batch in _BATCHES[:2]]
    except RuntimeError:
        # operands of two precisions: the module states one itself
        return []


def _weights(
    module: nn.Module, trace_record: Record, splits: dict[str, str]
) -> dict[str, list[dict[str, Any]]]:
    """Parameter shapes by place; a parameter in several places is `shared` after the first."""
    divided = {}
    for name, kind in splits.items():
        for part, parameter in module.get_submodule(name).named_parameters():
            plain = "replicated" if part == "bias" else "row"
            divided[id(parameter)] = plain if kind == "row" else "column"
    inside: dict[int, list[str]] = defaultdict(list)
    for name, unit in user_module.Places(module, lambda _: None).units.items():
        for parameter in unit.parameters():
            inside[id(parameter)].append(name)
    result: dict[str, Counter[tuple[int, int, bool, bool, str]]] = defaultdict(Counter)
    for parameter in module.parameters():
        used = trace_record.uses.get(id(parameter), [])
        ends = [
            place for place in used if place in (user_module.Places.FIRST, user_module.Places.LAST)
        ]
        places = [p for p in (*inside[id(parameter)], *ends) if p in trace_record.order] or [
            user_module.Places.FIRST
        ]
        rows = parameter.shape[0] if parameter.dim() else 1
        columns = parameter.numel() // max(rows, 1)
        places.sort(key=trace_record.order.index)
        for number, place in enumerate(places):
            split = divided.get(id(parameter), "replicated")
            result[place][rows, columns, parameter.requires_grad, number > 0, split] += 1
    names = ("rows", "columns", "trainable", "shared", "split")
    return {
        place: [dict(zip(names, dims, strict=True)) | {"count": n} for dims, n in shapes.items()]
        for place, shapes in result.items()
    }


def _check_linear(records: Sequence[Record]) -> None:
    lengths = [(len(r.operations), len(r.kernels), len(r.saved), len(r.changes)) for r in records]
    if len(set(lengths)) > 1:
        raise DescriptionError(
            f"the module runs different operations for {_BATCHES[0]} and {_BATCHES[1]} samples; "
            "make its operations independent of the batch size"
        )
    for name, sizes in (
        ("memory of the saved tensors", [sum(tensor.bytes for tensor in r.saved) for r in records]),
        ("memory traffic", [sum(kernel.bytes for kernel in r.kernels) for r in records]),
    ):
        steps = {after - before for before, after in itertools.pairwise(sizes)}
        if len(steps) > 1:
            raise DescriptionError(
                f"{name} is not linear in the batch ({sizes[0]}, {sizes[1]} and {sizes[2]} bytes "
                f"for {_BATCHES[0]}, {_BATCHES[1]} and {_BATCHES[2]} samples), for example because "
                "every sample is compared with every other; the planner does not support such "
                "modules"
            )


class _PerSample:
    """Costs per sample: the difference of records of two batches."""

    def __init__(self, records: Sequence[Record], splits: Sequence[str] = ()) -> None:
        first, second = records
        self.samples = _BATCHES[1] - _BATCHES[0]
        self.order, self.widths = first.order, first.widths
        self.operations: dict[str, list[TracedOperation]] = defaultdict(list)
        pairs_of_operations = zip(first.operations, second.operations, strict=True)
        for number, ((place, small), (_, large)) in enumerate(pairs_of_operations):
            if grown := self._per_sample_operation(small, large):
                split = splits[number] if splits else "replicated"
                self.operations[place].append(grown.replaced(split=split))
        self.moved = self._sums(
            ((small.place, small.backward), large.bytes - small.bytes)
            for small, large in zip(first.kernels, second.kernels, strict=True)
        )
        self.kernels = Counter(k.place for k in first.kernels if not k.backward)
        pairs = list(zip(first.saved, second.saved, strict=True))
        self.saved = self._sums(
            (small.place, large.bytes - small.bytes) for small, large in pairs if not small.result
        )
        self.held = sum(
            (large.bytes - small.bytes) / self.samples for small, large in pairs if small.result
        )
        self.fixed = self._sums(
            (small.place, large.bytes - small.bytes) for small, large in pairs if not small.real
        )
        self.constant = {
            place: sum(
                small.bytes for small, _ in pairs if small.place == place and not small.result
            )
            - _BATCHES[0] * self.saved.get(place, 0.0)
            for place in self.order
        }
        self.working = self._working(
            [
                (place, (after - before) / self.samples)
                for (place, before), (_, after) in zip(first.changes, second.changes, strict=True)
            ]
        )

    def _sums(self, pairs: Iterable[tuple[Any, int]]) -> dict[Any, float]:
        total: dict[Any, float] = defaultdict(float)
        for key, size in pairs:
            total[key] += size / self.samples
        return total

    def _per_sample_operation(
        self, small: TracedOperation, large: TracedOperation
    ) -> TracedOperation | None:
        """The operation of one sample; None if it does not depend on the batch."""
        grows = [name for name in _SIZES if getattr(small, name) != getattr(large, name)]
        if not grows:
            return None
        if len(grows) > 1:
            raise DescriptionError(
                f"a product of {small.rows} x {small.k} and {small.k} x {small.n} grows with the "
                "square of the batch, for example because every sample is compared with every "
                "other; the planner does not support such modules"
            )
        (name,) = grows
        size = (getattr(large, name) - getattr(small, name)) // self.samples
        grown = small.replaced(**{name: size})
        if name == "n":
            # the batch is in the columns
            grown = grown.replaced(
                rows=size,
                n=small.rows,
                input_gradient=small.weight_gradient,
                weight_gradient=small.input_gradient,
            )
        if name == "copies" and small.kind == "product":
            grown = grown.replaced(kind="batched")
        shared = (large.inputs - small.inputs) // self.samples
        if name != "copies" and small.copies > 1 and small.kind != "attention":
            # every copy has its own weight, which sees all samples
            grown = grown.replaced(rows=grown.rows * small.copies, copies=1)
        return grown.replaced(inputs=shared)

    def _working(self, changes: list[tuple[str, float]]) -> dict[str, float]:
        """Peak of temporaries in each place, above the saved tensors of it and earlier places."""
        total = sum(self.saved.values())
        peak_bytes: dict[str, float] = {}
        for place, growth in changes:
            total += growth
            peak_bytes[place] = max(peak_bytes.get(place, 0.0), total)
        saved_bytes, working_bytes = 0.0, {}
        for place in self.order:
            saved_bytes += self.saved.get(place, 0.0)
            working_bytes[place] = max(peak_bytes.get(place, 0.0) - saved_bytes, 0.0)
        return working_bytes


def _divided(place: str, full: _PerSample, half: _PerSample) -> dict[str, Any]:
    """Share of a block's bytes that halves with its Linear layers."""
    shares = {}
    for figure, table, key in (
        ("forward", "moved", (place, False)),
        ("backward", "moved", (place, True)),
        ("saved", "saved", place),
        ("working", "working", place),
    ):
        total, left = (getattr(figures, table).get(key, 0.0) for figures in (full, half))
        if left < total:
            shares[figure] = min(2 * (1 - left / total), 1.0)
    return {"divided": shares} if shares else {}


def _block(
    place: str,
    figures: tuple[_PerSample, _PerSample, _PerSample | None],
    weights: list[dict[str, Any]],
) -> dict[str, Any]:
    plain, under, cast = figures
    role = place if place in (user_module.Places.FIRST, user_module.Places.LAST) else "repeated"

    def each(table: str, key: Any, fixed: float = 0.0) -> dict[str, float]:
        total = getattr(plain, table).get(key, 0.0)
        return {
            "fp32": total,
            "autocast": getattr(under, table).get(key, 0.0),
            "cast": getattr(cast, table).get(key, 0.0) if cast else (total + fixed) / 2,
        }

    operations = Counter(plain.operations[place])
    return {
        "name": place,
        "role": role,
        "count": 1,
        "width": plain.widths.get(place, 0) // _BATCHES[0],
        "weights": weights,
        "operations": [
            operation.model_dump(exclude_defaults=True) | {"count": count}
            for operation, count in operations.items()
        ],
        "forward": each("moved", (place, False)),
        "backward": each("moved", (place, True)),
        "kernels": each("kernels", place) | ({} if cast else {"cast": float(plain.kernels[place])}),
        "saved": each("saved", place, plain.fixed.get(place, 0.0)),
        "working": each("working", place),
    }


def _merge_blocks(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge equal blocks into one with a count, the largest working memory, mean backward bytes."""
    merged: dict[str, dict[str, Any]] = {}
    for place, block in enumerate(blocks, -1):
        merge_key = {key: value for key, value in block.items() if key not in _IGNORED_FIELDS}
        fresh = {**block, "count": 0, "backward": Counter(), "places": []}
        entry = merged.setdefault(repr(merge_key), fresh)
        entry["count"] += 1
        entry["places"].append(place)
        entry["backward"].update(block["backward"])
        entry["working"] = {
            name: max(size, entry["working"][name]) for name, size in block["working"].items()
        }
    order = [place for entry in merged.values() for place in entry["places"]]
    for entry in merged.values():
        if order == sorted(order) or entry["role"] != "repeated":
            del entry["places"]
        entry["backward"] = {
            name: size / entry["count"] for name, size in entry["backward"].items()
        }
    return list(merged.values())
