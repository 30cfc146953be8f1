"""Run: one estimated layout with everything that its files are written from."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.cost.estimate import Estimate
from planner.describe.catalogue import load_machine, load_model, names
from planner.describe.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.question import Question
from planner.describe.workload import Workload
from planner.errors import shorten

__all__ = ["DEFAULT_STEPS", "Recipe", "Run", "slug", "steps_of"]

DEFAULT_STEPS = 1000
"""Steps of a run without a number of tokens, as the plan's node-hours count them."""


def slug(text: str, limit: int = 40) -> str:
    """A name that is harmless in every file: letters, digits, . _ -; opens with a letter.

    >>> slug('7b "$(rm -rf ~)"'), slug("mistral-7b")
    ('m-7b-rm--rf', 'mistral-7b')
    """
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:limit].strip("-._")
    return clean if clean[:1].isalpha() else f"m-{clean}".rstrip("-")


@dataclass(frozen=True, slots=True)
class Run:
    """What is run, where, on how many nodes, and for how many steps."""

    question: Question
    estimate: Estimate
    nodes: int
    steps: int
    queue: str = ""
    """The queue that a user asked for; empty: the shortest that holds the run."""

    @property
    def model(self) -> Model:
        """The model."""
        return self.question.model

    @property
    def machine(self) -> Machine:
        """The machine."""
        return self.question.machine

    @property
    def workload(self) -> Workload:
        """The workload."""
        return self.question.workload

    @property
    def framework(self) -> Framework:
        """The framework."""
        return self.question.framework

    @property
    def layout(self) -> Layout:
        """The layout."""
        return self.estimate.layout

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one node."""
        return self.machine.node.num_devices

    @property
    def name(self) -> str:
        """Name of the job."""
        return slug(self.model.name)

    @property
    def where(self) -> str:
        """The machine's name as a message may print it."""
        return shorten(self.machine.name)

    @property
    def what(self) -> str:
        """The run in one line of plain words."""
        nodes = f"{self.nodes} node{'s' if self.nodes > 1 else ''}"
        return (
            f"{self.name} on {nodes} of {slug(self.machine.name)} with "
            f"{slug(self.framework.name)}: {self.layout}"
        )

    @property
    def model_is_catalogued(self) -> bool:
        """Whether the model's name suffices to find it again."""
        return self.model.name in names("model") and load_model(self.model.name) == self.model

    @property
    def machine_is_catalogued(self) -> bool:
        """Whether the machine's name suffices to find it again."""
        name = self.machine.name
        return name in names("machine") and load_machine(name) == self.machine

    @property
    def seconds(self) -> float:
        """Time of all steps at the slow end of the interval [s]."""
        return self.steps * self.estimate.interval_step_time_s[1]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a framework is told the layout: its files, what is started, what a user still sets."""

    files: Mapping[str, str]
    program: str = '"${PROGRAM}"'
    """What Python runs, as shell words: the user's own program, or a module of the framework."""
    default_program: str = "train.py"
    """The file taken where PROGRAM is not set; empty where the program is a module."""
    arguments: tuple[str, ...] = ()
    """Shell words after the program."""
    argument_files: tuple[str, ...] = ()
    """Files with one argument a line, handed to the program first."""
    launcher: Literal["torch", "accelerate"] = "torch"
    """What starts the processes of a node."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What a user must set, with what it is."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the framework reads."""
    needed: Mapping[str, str] = field(default_factory=dict)
    """Files that a user must bring, with what they are."""
    notes: tuple[str, ...] = ()
    """What the files cannot say: sentences of the README."""


def steps_of(workload: Workload) -> int:
    """Steps for the workload's tokens, or DEFAULT_STEPS where none are asked.

    >>> steps_of(Workload(sequence_length=4096, global_batch=256, tokens=1e9))
    954
    """
    if not workload.tokens:
        return DEFAULT_STEPS
    return max(math.ceil(workload.tokens / workload.tokens_per_step), 1)
