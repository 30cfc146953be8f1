"""Option: what a question asks besides the job, declared once in its signature.

The command line and the explorer make an option and a control of every parameter that is annotated
so: `most_nodes: Annotated[int | None, Option("Most nodes to look at.", least=1)] = None`.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, TypeVar

from planner.describe.base import shown
from planner.describe.workload import Workload
from planner.errors import LayoutError, UnknownNameError, shorten
from planner.units import either

__all__ = ["Nodes", "Option", "Parameter", "checked", "parameters"]


@dataclass(frozen=True, slots=True)
class Option:
    """What is said of a parameter of a question."""

    help: str
    """What it is, in one sentence."""
    least: float | None = None
    """Smallest value; where there is one."""
    above: float | None = None
    """What a value exceeds, where that is no value of its own."""
    most: float | None = None
    """Largest value."""
    metavar: str = ""
    """How its value is called."""

    def broken(self, value: float) -> str:
        """The bound that a value breaks, in words; empty where it keeps all."""
        if self.above is not None and not value > self.above:
            return f"be more than {self.above:g}"
        least = -math.inf if self.least is None else self.least
        most = math.inf if self.most is None else self.most
        if least <= value <= most:
            return ""
        upper = self.most is not None
        return f"lie between {least:g} and {most:g}" if upper else f"be at least {least:g}"


Nodes = Annotated[int, Option("On how many nodes it runs.", least=1)]
"""On how many nodes a question is asked, for those that do not look for them."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a question as programs read it."""

    name: str
    kind: Any
    """Its type, without None."""
    default: Any
    option: Option

    @property
    def choices(self) -> tuple[str, ...]:
        """Words that it may be; empty where it is no word of a few."""
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is typing.Literal else ()

    def plain(self, value: Any) -> Any:
        """A value as plain data, one text as one of several.

        Raises LayoutError for a value beyond the bounds, or for a word that is none of it.
        """
        option, said = self.option, shorten(shown(value))
        why = option.help[:1].lower() + option.help[1:].rstrip(".")
        if self.choices and value not in self.choices:
            raise LayoutError(f"{self.name} = {said!r} is not known; use {either(self.choices)}")
        if value is None or not (self.repeats or self.kind in (int, float)):
            return value
        if self.repeats:
            kind = typing.get_args(self.kind)[0]
            some = (value,) if isinstance(value, kind) else value
            if not isinstance(some, Iterable) or not all(isinstance(one, kind) for one in some):
                words = " or ".join(self._words)
                raise LayoutError(f"{self.name} = {said!r} is not of {words} alone: {why}")
            return tuple(some)
        kind = numbers.Integral if self.kind is int else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind):
            what = "whole number" if self.kind is int else "number"
            raise LayoutError(f"{self.name} = {said!r} is no {what}: {why}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise LayoutError(f"{self.name} = {said} is not finite: {why}")
        if rule := option.broken(number):
            raise LayoutError(f"{self.name} = {number:g} must {rule}: {why}")
        return self.kind(value)

    @property
    def _words(self) -> list[str]:
        """What several values are, as one says it: texts, and descriptions of a kind."""
        kind = typing.get_args(self.kind)[0]
        kinds = typing.get_args(kind) or (kind,)
        return ["texts" if one is str else f"{one.__name__.lower()}s" for one in kinds]

    @property
    def repeats(self) -> bool:
        """Whether it takes several values."""
        return typing.get_origin(self.kind) is tuple


P = ParamSpec("P")
R = TypeVar("R")


def checked(question: Callable[P, R]) -> Callable[P, R]:
    """A question that refuses values beyond the bounds or the words of its options.

    Raises LayoutError with value, rule and what the option is, and UnknownNameError for what is
    none of its arguments. One text stands for several where an option takes them; numbers of numpy
    and others become plain ones, which JSON keeps.

    >>> @checked
    ... def half(*, of: Annotated[float, Option("What is halved.", least=1, most=9)]) -> float:
    ...     return of / 2
    >>> half(of=0)
    Traceback (most recent call last):
    ...
    planner.errors.LayoutError: of = 0 must lie between 1 and 9: what is halved
    """

    @functools.wraps(question)
    def called(*args: P.args, **given: P.kwargs) -> R:
        _check_names(question, given)
        plain = {
            one.name: one.plain(given[one.name])
            for one in parameters(question)
            if one.name in given
        }
        return question(*args, **{**given, **plain})

    return called


def _check_names(question: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise PlannerError for an argument that a question does not take, named as it might be."""
    known = _arguments(question)
    for name in given:
        if known is None or name in known:
            continue
        if name in Workload.model_fields:
            raise LayoutError(
                f"{name} is a field of the workload; give workload=planner.Workload({name}=...)"
            )
        listing = f"`help(planner.ask.{question.__name__})` says what they are"
        raise UnknownNameError("argument", name, known, listing)


@functools.cache
def _arguments(question: Callable[..., Any]) -> frozenset[str] | None:
    """Names of all that a question takes; None where Python refuses others itself."""
    signature = inspect.signature(question, eval_str=True).parameters
    rest = [one for one in signature.values() if one.kind is inspect.Parameter.VAR_KEYWORD]
    fields = [typing.get_args(one.annotation)[0].__annotations__ for one in rest]
    return frozenset([*signature, *fields[0]]) - {rest[0].name} if rest else None


@functools.cache
def parameters(question: Callable[..., Any]) -> tuple[Parameter, ...]:
    """What a question asks besides model, machine and workload, in the order of its signature."""
    found = []
    for one in inspect.signature(question, eval_str=True).parameters.values():
        marks = getattr(one.annotation, "__metadata__", ())
        for mark in marks:
            if isinstance(mark, Option):
                kind = typing.get_args(one.annotation)[0]
                members = [part for part in typing.get_args(kind) if part is not type(None)]
                optional = type(None) in typing.get_args(kind)
                found.append(
                    Parameter(one.name, members[0] if optional else kind, one.default, mark)
                )
    return tuple(found)
