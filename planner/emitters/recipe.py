"""Recipe: a framework's files, program, arguments and variables for one layout."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import Switch
from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.text import render, with_lines

OWN_PROGRAM = "train.py"
"""The user's own program, for frameworks that bring none."""


@dataclass(frozen=True, slots=True)
class File:
    """One file to write."""

    name: str
    meaning: str
    """Purpose, for the README."""
    text: str


class Page:
    """A template with a block per file and one of `notes`, and the values that fill it in."""

    def __init__(self, name: str, job: BatchJob, **values: Any) -> None:
        self.name = name
        self.values = {
            "job": job,
            "layout": job.layout,
            "model": job.model,
            "workload": job.workload,
            "checkpoints": CHECKPOINTS,
            **values,
        }

    def text(self, block: str, form: str = "") -> str:
        """Fill in one block."""
        return render(self.name, block, form, **self.values)

    def file(self, name: str, meaning: str) -> File:
        """Make a file from the block with its name, without the ending."""
        block, dot, ending = name.partition(".")
        return File(name, meaning, self.text(block, dot + ending))

    def notes(self) -> tuple[str, ...]:
        """Notes for the README: each item of the block `notes`, as one line."""
        items = re.split(r"^- ", self.text("notes"), flags=re.MULTILINE)
        return tuple(" ".join(item.split()) for item in items if item.strip())


@dataclass(frozen=True, slots=True)
class Resume:
    """How a program resumes that does not look for a checkpoint itself."""

    checkpoint: str
    """Path in the job's folder that exists once a checkpoint is saved."""
    arguments: tuple[str, ...]
    """Shell words added at the end of the command if that path exists."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a framework runs a layout: files, program, arguments, and variables that users set."""

    files: tuple[File, ...]
    program: str = '"${PROGRAM}"'
    """Program for Python, as shell words: the user's own, or a module of the framework."""
    default_program: str = OWN_PROGRAM
    """Program file if PROGRAM is not set; empty if the program is a module."""
    arguments: tuple[str, ...] = ()
    argument_files: tuple[str, ...] = ()
    """Files with one argument per line, passed to the program before `arguments`."""
    launcher: Literal["torch", "accelerate", "ezpz", "horovod", "none"] = "torch"
    """Launcher of a node's processes; none: a single process without ranks."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user must set, with their meanings."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that the framework reads."""
    needed: Mapping[str, str] = field(default_factory=dict)
    """Files and folders/ that the user must provide, with their meanings."""
    saves: bool = False
    """Whether the files make the program save and resume; else the README asks users to add it."""
    resume: Resume | None = None
    """How the program resumes; None if it finds the latest checkpoint by itself."""
    notes: tuple[str, ...] = ()
    """README sentences on settings that the files cannot state."""
    states_switches: bool = False
    """Whether its files already state the active switches."""


def switched_on(recipe: Recipe, framework: Framework) -> Recipe:
    """Add the arguments and environment variables of active switches to a recipe."""
    for word, switch in framework.active_switches.items():
        for line in () if recipe.states_switches else switch.fill_arguments(word):
            recipe = _add_switch_line(recipe, word, switch, line)
    return replace(recipe, environment={**recipe.environment, **framework.environment})


def _add_switch_line(recipe: Recipe, word: str, switch: Switch, line: str) -> Recipe:
    """Add a switch's line to a file, or a note to the README if no file takes it."""
    files = list(recipe.files)
    place, colon, rest = line.partition(": ")
    name, argument = (place, rest) if colon else (files[0].name if files else "", line)
    for index, file in enumerate(files):
        text = with_lines(name, file.text, [argument]) if file.name == name else None
        if text is not None:
            files[index] = replace(file, text=text)
            return replace(recipe, files=tuple(files))
    sentence = f"Turn on switch `{word}` ({switch.does}) in your own program."
    return replace(recipe, notes=tuple(dict.fromkeys((*recipe.notes, sentence))))
