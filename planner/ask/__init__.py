"""Questions that take many plans, answered at once: a sentence, a table, the reasons.

A question takes a model, a machine and a workload, as `planner.plan` does, and options of its own.
It returns an `Answer`, which reads and writes JSON.

>>> workload = Workload(sequence_length=1024, global_batch=64)
>>> planner.ask.largest_batch("gpt2", "polaris", workload=workload).found
True
"""

from planner.ask.answer import Answer
from planner.ask.layouts.gradient_buckets import buckets
from planner.ask.layouts.memory_phases import host, memory
from planner.ask.layouts.node_traffic import network
from planner.ask.layouts.offload_rates import offload
from planner.ask.layouts.sensitivity import sensitivity
from planner.ask.layouts.zero_stages import zero
from planner.ask.limits.batch_sizes import batch, largest_batch
from planner.ask.limits.largest_jobs import model, sequence
from planner.ask.limits.learning_rates import learning_rate
from planner.ask.question import Question
from planner.ask.resources.changes import change
from planner.ask.resources.machines import machine
from planner.ask.resources.node_counts import nodes, scaling
from planner.ask.resources.training_time import cheapest, deadline
from planner.ask.training.checkpoint_cost import checkpoints
from planner.ask.training.input_data import data
from planner.ask.training.startup_time import startup

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

QUESTIONS: dict[str, Question[...]] = {
    question.__name__.replace("_", "-"): question
    for question in (
        *(nodes, deadline, cheapest, scaling, machine, startup, checkpoints, model, sequence),
        *(batch, largest_batch, learning_rate, change, sensitivity, memory, zero, offload),
        *(buckets, host, data, network),
    )
}
"""Every question by its name, in the order in which the command line lists them."""


def __dir__() -> list[str]:
    """Names for completion: the questions, without the modules that hold them."""
    return __all__
