"""Option: what a question asks besides the job, declared once in its signature.

The command line and the explorer make an option and a control of every parameter that is annotated
so: `most: Annotated[int | None, Option("Most nodes to look at.", least=1)] = None`.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

__all__ = ["Nodes", "Option", "Parameter", "parameters"]


@dataclass(frozen=True, slots=True)
class Option:
    """What is said of a parameter of a question."""

    help: str
    """What it is, in one sentence."""
    least: float | None = None
    """Smallest value; where there is one."""
    most: float | None = None
    """Largest value."""
    metavar: str = ""
    """How its value is called."""


Nodes = Annotated[int, Option("Nodes.", least=1)]
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

    @property
    def repeats(self) -> bool:
        """Whether it takes several values."""
        return typing.get_origin(self.kind) is tuple


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
