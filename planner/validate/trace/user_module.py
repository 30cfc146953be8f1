"""User's module: built by a function in a file, run so that it saves what accelerators save."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from planner.describe.files import read_toml
from planner.errors import DescriptionError, shorten, shorten_path
from planner.validate.sharding.attention import fused_rms_norm

_RETURNS = (
    "return (module, sample): the module, and the tensors of one sample without a batch dimension"
)
_NEEDS_VALUES = {
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "UnsupportedFakeTensorException",
}
"""Errors that torch raises if an operation needs the values of fake tensors."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one sample, by position or by name, each without a batch dimension."""

    tensors: dict[int | str, Tensor]

    def narrow(self) -> Sample:
        """Cast floating-point tensors to bf16."""
        pairs = self.tensors.items()
        return Sample(
            {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in pairs}
        )

    def batch(self, size: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Make the arguments of a call with `size` samples."""
        batched = {
            name: torch.zeros((size, *tensor.shape), dtype=tensor.dtype, device="cpu")
            for name, tensor in self.tensors.items()
        }
        return (
            tuple(value for name, value in batched.items() if isinstance(name, int)),
            {name: value for name, value in batched.items() if isinstance(name, str)},
        )


def build_module(
    path: str, function: str, where: str, *, device: str = "meta"
) -> tuple[nn.Module, Sample]:
    """Build module and sample with a file's function on a device; errors name `where`."""
    build = _function(path, function, where)
    with explain_user_errors(path, where), torch.device(device):
        result = build()
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Module):
        raise DescriptionError(f"{where} returned {_type_name(result)}; {_RETURNS}")
    module, inputs = result
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    tensors: dict[int | str, Any] = dict(inputs) if isinstance(inputs, dict) else {}
    if isinstance(inputs, tuple | list):
        tensors = dict(enumerate(inputs))
    if not tensors or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise DescriptionError(f"{where} returned {_type_name(inputs)} as the sample; {_RETURNS}")
    return module, Sample(tensors)


def _function(path: str, function: str, where: str) -> Callable[[], Any]:
    # a unique module name, whatever the file is called
    spec = importlib.util.spec_from_file_location(f"traced_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # modules in the file's folder can be imported, as when the file is run
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.modules[spec.name] = module
    with explain_user_errors(path, where):
        spec.loader.exec_module(module)
    attribute = getattr(module, function, None)
    if not callable(attribute):
        defined = sorted(
            name
            for name, value in vars(module).items()
            if callable(value) and getattr(value, "__module__", "") == spec.name
        )
        hint = f"it defines {', '.join(defined[:8])}" if defined else "it defines none"
        raise DescriptionError(
            f"{where}: the file has no function {shorten(function)!r} ({hint}); name one that "
            "returns (module, sample)"
        )
    result: Callable[[], Any] = attribute
    return result


def _type_name(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return f"a {type(value).__name__}"


@contextlib.contextmanager
def explain_user_errors(path: str, where: str) -> Iterator[None]:
    """Report exceptions of a user's code in one sentence that names the line."""
    try:
        yield
    except DescriptionError as error:
        start = "" if str(error).startswith(where) else f"{where}: "
        raise DescriptionError(f"{start}{error}") from None
    except (Exception, SystemExit) as error:
        message = shorten(" ".join(str(error).split()) or "no message", 300)
        name = type(error).__name__
        line = _line(error, path) or "its forward pass"
        if name in _NEEDS_VALUES or "Tensor.item() cannot be called on meta" in str(error):
            raise DescriptionError(
                f"{where}: {line} reads the value of a tensor, but traced tensors have none "
                f"({name}); make sizes and branches depend only on shapes, or make that tensor "
                'with device="cpu"'
            ) from None
        raise DescriptionError(f"{where}: {line} raised {name}: {message}; correct it") from None


def _line(error: BaseException, path: str) -> str:
    """Innermost line of the user's file in a traceback; empty if the file is not in it."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno} of {shorten_path(error.filename or path)}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).name == Path(path).name:
            return f"line {frame.lineno} of {shorten_path(frame.filename)}"
    return ""


_IN_FP32 = frozenset(read_toml(Path(__file__).with_name("autocast.toml"))["in_fp32"])
"""Functions that CUDA's autocast runs in fp32, but the CPU's does not."""
_EPS = 1e-6
_ATTENTION = functional.scaled_dot_product_attention


class _Kernels(TorchFunctionMode):
    """Replaces functions whose CPU kernels save other tensors than an accelerator's."""

    def __init__(self, autocast: bool) -> None:
        super().__init__()
        self.autocast = autocast

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is functional.dropout:
            return _dropout(*args, **kwargs)
        if func is functional.rms_norm:
            return _rms_norm(*args, **kwargs)
        if func is _ATTENTION:
            return _attention(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            # a mode does not see the calls inside this function
            with mock.patch.multiple(
                functional, dropout=_dropout, scaled_dot_product_attention=_attention
            ):
                return func(*args, **kwargs)
        if self.autocast and name in _IN_FP32:
            args = tuple(_wide(value) for value in args)
            kwargs = {key: _wide(value) for key, value in kwargs.items()}
        return func(*args, **kwargs)


def _wide(value: Any) -> Any:
    narrow = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if narrow else value


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    del inplace
    if not training or p == 0.0:
        return x
    return torch.native_dropout(x, p, True)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> Tensor:
    del dropout_p  # a fused kernel applies dropout inside, and saves only a seed
    return _ATTENTION(query, key, value, attn_mask, 0.0, is_causal, **options)


def _rms_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    if weight is None:
        weight = x.new_ones(shape)
    normed: Tensor = fused_rms_norm(x, weight, _EPS if eps is None else eps)
    # this product stands for the bytes that the kernel reads and writes
    return normed * 1.0


@contextlib.contextmanager
def accelerator_kernels(*, autocast: bool) -> Iterator[None]:
    """Run a module as an accelerator does, in fp32 or under autocast to 16 bits."""
    # without oneDNN, recurrent layers are products and element-wise operations, not one operation
    under = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    with torch.backends.mkldnn.flags(enabled=False), _Kernels(autocast), under:
        yield


def materialise(module: nn.Module, real: torch.dtype = torch.float32) -> None:
    """Give a module's tensors fake CPU storage in one precision; shared tensors stay shared."""
    storages: dict[int, Tensor] = {}
    references: list[Tensor] = []

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in storages:
            dtype = real if tensor.is_floating_point() else tensor.dtype
            new = torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            storages[id(tensor)] = new
            references.append(tensor)
        return storages[id(tensor)]

    for part in module.modules():
        tables: tuple[dict[str, Any], ...] = (part._parameters, part._buffers, vars(part))
        for table in tables:
            for name, value in list(table.items()):
                if isinstance(value, Tensor):
                    table[name] = fake(value)


_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def _is_list(module: nn.Module) -> bool:
    items = [child for child in module.children() if any(True for _ in child.parameters())]
    return type(module) in _CONTAINERS and len(items) > 1


def _listed(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for key, child in module.named_children():
        if _is_list(child) or not _is_list(module):
            yield from _listed(child, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", child


class Places:
    """Position of a forward pass in a module: before its units, in one of them, or after."""

    FIRST, LAST = "first", "last"

    def __init__(self, module: nn.Module, moved: Callable[[str], None]) -> None:
        self._moved = moved
        # the units that sharding wraps: outermost list entries, else children, else itself
        listed, children = dict(_listed(module, "")), dict(module.named_children())
        self.units = listed or children or {type(module).__name__: module}
        self.order: list[str] = [self.FIRST]
        """Places in the order in which forward entered them."""
        self.now = self.FIRST
        self._inside: list[str] = []
        self.widths: dict[str, int] = {}
        """Elements of the floating-point tensors that enter each unit."""
        moved(self.now)

    def hook(self) -> Iterator[Any]:
        """Register hooks that follow the units; yields their handles."""
        for name, unit in self.units.items():
            yield unit.register_forward_pre_hook(self._entering(name), with_kwargs=True)
            yield unit.register_forward_hook(self._leaving, always_call=True)

    def _entering(self, name: str) -> Any:
        has_parameters = any(True for _ in self.units[name].parameters())

        def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
            place = name
            if not has_parameters and not self._inside and len(self.order) > 1:
                place = self.order[-1]
            self._inside.append(place)
            self._go(place)
            if place not in self.order:
                self.order.append(place)
                entering = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
                self.widths[place] = sum(v.numel() for v in entering if v.is_floating_point())

        return enter

    def _leaving(self, *_: Any) -> None:
        self._inside.pop()
        self._go(self._inside[-1] if self._inside else self.LAST)

    def _go(self, place: str) -> None:
        self.now = place
        self._moved(place)
