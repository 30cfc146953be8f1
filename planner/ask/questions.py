"""Questions: all of them by name, as the command line and the explorer offer them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from planner.ask.answer import Answer
from planner.ask.causes.buckets import buckets
from planner.ask.causes.data import data
from planner.ask.causes.host import host
from planner.ask.causes.memory import memory
from planner.ask.causes.network import network
from planner.ask.causes.offload import offload
from planner.ask.causes.zero import zero
from planner.ask.facts.change import change
from planner.ask.facts.sensitivity import sensitivity
from planner.ask.limits.batch import batch
from planner.ask.limits.largest_batch import largest_batch
from planner.ask.limits.learning_rate import learning_rate
from planner.ask.limits.model import model
from planner.ask.limits.sequence import sequence
from planner.ask.resources.cheapest import cheapest
from planner.ask.resources.deadline import deadline
from planner.ask.resources.machine import machine
from planner.ask.resources.nodes import nodes
from planner.ask.resources.scaling import scaling
from planner.ask.training.checkpoints import checkpoints
from planner.ask.training.startup import startup

__all__ = ["QUESTIONS", "said", "summary"]

QUESTIONS: dict[str, Callable[..., Answer]] = {
    "nodes": nodes,
    "deadline": deadline,
    "cheapest": cheapest,
    "scaling": scaling,
    "machine": machine,
    "startup": startup,
    "checkpoints": checkpoints,
    "model": model,
    "sequence": sequence,
    "batch": batch,
    "largest-batch": largest_batch,
    "learning-rate": learning_rate,
    "change": change,
    "sensitivity": sensitivity,
    "memory": memory,
    "zero": zero,
    "offload": offload,
    "buckets": buckets,
    "host": host,
    "data": data,
    "network": network,
}
"""Every question by its name, in the order in which they are offered."""


def said(name: str) -> str:
    """What a question is, as its docstring says it before the example.

    >>> said("nodes").splitlines()[0]
    'The fewest nodes on which a job fits, on which it is safe, and on which one would run it.'
    """
    return inspect.getdoc(QUESTIONS[name]).split(">>>")[0].strip()  # type: ignore[union-attr]


def summary(name: str) -> str:
    """A question in half a line, as its module says it.

    >>> summary("sequence")
    'The longest that fits'
    """
    text = sys.modules[QUESTIONS[name].__module__].__doc__ or ""
    first = text.splitlines()[0].partition(": ")[2].rstrip(".")
    return first[0].upper() + first[1:]
