"""Questions that take many plans, answered at once: a sentence, a table, the reasons.

Every question takes a model, a machine and a workload, as `planner.plan` does, and what it asks
besides; every answer is an `Answer`, which JSON keeps.

>>> import planner
>>> job = planner.Workload(sequence_length=1024, global_batch=64)
>>> planner.ask.largest_batch("gpt2", "polaris", workload=job).found
True
"""

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
from planner.ask.questions import QUESTIONS
from planner.ask.resources.cheapest import cheapest
from planner.ask.resources.deadline import deadline
from planner.ask.resources.machine import machine
from planner.ask.resources.nodes import nodes
from planner.ask.resources.scaling import scaling
from planner.ask.training.checkpoints import checkpoints
from planner.ask.training.startup import startup

__all__ = [
    "QUESTIONS",
    "Answer",
    "batch",
    "buckets",
    "change",
    "cheapest",
    "checkpoints",
    "data",
    "deadline",
    "host",
    "largest_batch",
    "learning_rate",
    "machine",
    "memory",
    "model",
    "network",
    "nodes",
    "offload",
    "scaling",
    "sensitivity",
    "sequence",
    "startup",
    "zero",
]


def __dir__() -> list[str]:
    """What is asked, without the modules that it comes from: editors complete these names."""
    return __all__
