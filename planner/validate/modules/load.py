"""Load: build a user's module and one sample from a function in a file.

The contract of `build()`: it returns a `torch.nn.Module` and one sample of its input: a tensor, a
tuple of tensors for positional arguments, or a dictionary for keywords, none with a dimension for
the batch. The planner puts that dimension first.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from planner.errors import DescriptionError, shorten, shorten_path

__all__ = ["Sample", "build_module", "explain_user_errors"]

_RETURNS = (
    "return (module, sample): the module, and the tensors of one sample without a batch dimension"
)
_NEEDS_VALUES = {
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
    "UnsupportedFakeTensorException",
}
"""Errors of torch where an operation on tensors without values asks for one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The arguments of one sample, by position or by name, each without a batch dimension."""

    tensors: dict[int | str, Tensor]

    def narrow(self) -> Sample:
        """Cast floating-point tensors to bf16."""
        return Sample(
            {
                name: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
                for name, tensor in self.tensors.items()
            }
        )

    def batch(self, size: int) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Arguments of a call with `size` samples."""
        batched = {
            name: torch.zeros((size, *tensor.shape), dtype=tensor.dtype, device="cpu")
            for name, tensor in self.tensors.items()
        }
        return (
            tuple(value for name, value in batched.items() if isinstance(name, int)),
            {name: value for name, value in batched.items() if isinstance(name, str)},
        )


def build_module(path: str, function: str, where_stated: str = "") -> tuple[nn.Module, Sample]:
    """Module and sample of a function in a file, on the meta device; `said`: the path as given.

    Raises DescriptionError, which names the user's own exception and its line.
    """
    where = f"{shorten_path(where_stated or path)}:{shorten(function)}"
    build = _function(path, function, where)
    with explain_user_errors(path, where), torch.device("meta"):
        result = build()
    return _check_result(result, where)


def _function(path: str, function: str, where: str) -> Callable[[], Any]:
    # a name that no other module has, whatever the file is called
    spec = importlib.util.spec_from_file_location(f"traced_{Path(path).stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # what stands beside the file can be imported, as when it is run
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


def _check_result(result: Any, where: str) -> tuple[nn.Module, Sample]:
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[0], nn.Module):
        raise DescriptionError(f"{where} returned {_type_name(result)}; {_RETURNS}")
    module, inputs = result
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    pairs: Any = inputs.items() if isinstance(inputs, dict) else ()
    if isinstance(inputs, tuple | list):
        pairs = enumerate(inputs)
    tensors = dict(pairs)
    if not tensors or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise DescriptionError(f"{where} returned {_type_name(inputs)} as the sample; {_RETURNS}")
    return module, Sample(tensors)


def _type_name(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    return f"a {type(value).__name__}"


@contextmanager
def explain_user_errors(path: str, where: str) -> Iterator[None]:
    """Report an exception of a user's code in one sentence that names its line."""
    try:
        yield
    except DescriptionError as error:
        message = str(error)
        raise DescriptionError(
            message if message.startswith(where) else f"{where}: {message}"
        ) from None
    except (Exception, SystemExit) as error:
        message = shorten(" ".join(str(error).split()) or "no message", 300)
        name = type(error).__name__
        line = _line(error, path) or "its forward pass"
        if name in _NEEDS_VALUES or "Tensor.item() cannot be called on meta" in str(error):
            raise DescriptionError(
                f"{where}: {line} asks for the value of a tensor, and tensors have none here "
                f"({name}); let sizes and branches depend on shapes alone, or make that tensor "
                'with device="cpu"'
            ) from None
        raise DescriptionError(f"{where}: {line} raised {name}: {message}; correct it") from None


def _line(error: BaseException, path: str) -> str:
    """Last line of the user's file in a traceback; empty if it is not in it."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno} of {shorten_path(error.filename or path)}"
    frames = traceback.extract_tb(error.__traceback__)
    frames_of_file = [frame for frame in frames if Path(frame.filename).name == Path(path).name]
    return (
        f"line {frames_of_file[-1].lineno} of {shorten_path(frames_of_file[-1].filename)}"
        if frames_of_file
        else ""
    )
