"""Option: a question's argument in addition to its job; `options.toml` has help and bounds."""

import inspect
import math
import numbers
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from planner.describe.base import quote
from planner.errors import LayoutError, shorten
from planner.units import either


@dataclass(frozen=True, slots=True)
class Option:
    """Help text and bounds of a question's argument."""

    help: str
    """Help text: one sentence."""
    least: float | None = None
    """Smallest allowed value."""
    above: float | None = None
    """Exclusive lower bound."""
    most: float | None = None
    """Largest allowed value."""
    metavar: str = ""
    """Placeholder for the value in help texts."""
    label: str = ""
    """Label of the control on a page, with the unit."""
    initial: Any = None
    """Initial value of the control of an option without a default."""

    def broken_bound(self, value: float) -> str:
        """Name the bound that a value violates; empty if it is within bounds."""
        if self.above is not None and not value > self.above:
            return f"be more than {self.above:g}"
        least = -math.inf if self.least is None else self.least
        most = math.inf if self.most is None else self.most
        if least <= value <= most:
            return ""
        return (
            f"be at least {least:g}" if self.most is None else f"lie between {least:g} and {most:g}"
        )


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option as the command line and the explorer read it."""

    name: str
    kind: Any
    """Type of the value, without None."""
    default: Any
    bounds: Option

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed words of a Literal; empty for every other type."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is typing.Literal else ()

    @property
    def repeats(self) -> bool:
        """True if the option takes several values."""
        return typing.get_origin(self.kind) is tuple

    def checked(self, value: Any) -> Any:
        """Return a valid value as plain data, a tuple if several are allowed; or LayoutError."""
        if self.choices and value not in self.choices:
            text = shorten(quote(value))
            raise LayoutError(f"{self.name} = {text!r} is not known; use {either(self.choices)}")
        if value is None and self.default is None:
            return None
        if self.repeats:
            return self._several(value)
        if self.kind in (str, bool) and not isinstance(value, self.kind):
            noun = "text" if self.kind is str else "True or False"
            raise LayoutError(f"{self.name} = {quote(value)} is not {noun}: {self._meaning}")
        return self._number(value) if self.kind in (int, float) else value

    @property
    def _meaning(self) -> str:
        return self.bounds.help[:1].lower() + self.bounds.help[1:].rstrip(".")

    def _several(self, value: Any) -> tuple[Any, ...]:
        kind = typing.get_args(self.kind)[0]
        values = (value,) if isinstance(value, kind) else value
        if isinstance(values, Iterable) and all(isinstance(each, kind) for each in values):
            return tuple(values)
        types = typing.get_args(kind) or (kind,)
        words = ["text" if each is str else f"a {each.__name__.lower()}" for each in types]
        text = shorten(quote(value))
        raise LayoutError(
            f"{self.name} = {text!r}: every value must be {' or '.join(words)}; {self._meaning}"
        )

    def _number(self, value: Any) -> float:
        text = shorten(quote(value))
        kind = numbers.Integral if self.kind is int else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            noun = "whole number" if self.kind is int else "number"
            raise LayoutError(f"{self.name} = {text!r} is not a {noun}: {self._meaning}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise LayoutError(f"{self.name} = {text} is not finite: {self._meaning}")
        if bound := self.bounds.broken_bound(number):
            raise LayoutError(f"{self.name} = {number:g} must {bound}: {self._meaning}")
        return self.kind(value)


def parameters(question: Callable[..., Any] | inspect.Signature) -> tuple[Parameter, ...]:
    """List the options of a question, in the order of its signature."""
    signature = question if isinstance(question, inspect.Signature) else inspect.signature(question)
    options = []
    for each in signature.parameters.values():
        for mark in getattr(each.annotation, "__metadata__", ()):
            kind = typing.get_args(each.annotation)[0]
            types = [part for part in typing.get_args(kind) if part is not type(None)]
            plain = types[0] if type(None) in typing.get_args(kind) else kind
            options.append(Parameter(each.name, plain, each.default, mark))
    return tuple(options)
