"""Questions that take many plans: each answer is a sentence, a table and the reasons."""

from planner.ask.answer import Answer
from planner.ask.layouts.memory_phases import host, memory
from planner.ask.layouts.transfers import network, offload
from planner.ask.layouts.why import why
from planner.ask.layouts.zero_stages import zero
from planner.ask.limits.batch_sizes import batch, largest_batch
from planner.ask.limits.largest_jobs import model, sequence
from planner.ask.question import Question
from planner.ask.resources.comparisons import change, machine
from planner.ask.resources.node_counts import nodes, scaling
from planner.ask.resources.training_time import cheapest, deadline
from planner.ask.training.checkpoint_cost import checkpoints
from planner.ask.training.waiting_times import data, startup

__all__ = ["QUESTIONS", "Answer", "batch", "change", "cheapest", "checkpoints", "data"]
__all__ += ["deadline", "host", "largest_batch", "machine", "memory", "model"]
__all__ += ["network", "nodes", "offload", "scaling", "sequence", "startup", "why"]
__all__ += ["zero"]


def _named(*questions: Question[...]) -> dict[str, Question[...]]:
    return {each.__name__.replace("_", "-"): each for each in questions}


GROUPS = {
    "Resources": _named(nodes, deadline, cheapest, scaling, machine, change),
    "Limits": _named(model, sequence, batch, largest_batch),
    "Layouts": _named(why, memory, zero, offload, host, network),
    "Training": _named(startup, checkpoints, data),
}
"""Questions by subject and name, in the order in which they are listed."""
QUESTIONS = {name: each for group in GROUPS.values() for name, each in group.items()}
"""Every question by its name."""


def __dir__() -> list[str]:
    """Names for completion: the questions, without the modules that hold them."""
    return __all__
