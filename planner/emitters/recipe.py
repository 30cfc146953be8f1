"""Recipe: how a framework is told a layout, as what its own module hands to the job script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from planner.describe.framework.framework import Framework
from planner.describe.framework.switches import Switch
from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.text import render, with_lines

OWN_PROGRAM = "train.py"
"""The user's own program, where a framework brings none."""


@dataclass(frozen=True, slots=True)
class File:
    """One file of the folder."""

    name: str
    """Its name."""
    meaning: str
    """What it is, for the README."""
    text: str
    """What stands in it."""


class Page:
    """A template of blocks, one a file or `notes`, and what fills them in."""

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
        """One block, filled in."""
        return render(self.name, block, form, **self.values)

    def file(self, name: str, meaning: str) -> File:
        """The file of a block."""
        block, dot, ending = name.partition(".")
        return File(name, meaning, self.text(block, dot + ending))

    def notes(self) -> tuple[str, ...]:
        """Sentences of the README: an item of the block `notes` each, in one line."""
        items = re.split(r"^- ", self.text("notes"), flags=re.MULTILINE)
        return tuple(" ".join(item.split()) for item in items if item.strip())


@dataclass(frozen=True, slots=True)
class Resume:
    """How a program is told to go on, where it does not look for a checkpoint itself."""

    checkpoint: str
    """Path, from the job's folder, that exists once a checkpoint was saved."""
    arguments: tuple[str, ...]
    """Shell words after all others, given where that exists."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a framework is told the layout: its files, what is started, what a user still sets."""

    files: tuple[File, ...]
    """What the framework reads."""
    program: str = '"${PROGRAM}"'
    """What Python runs, as shell words: the user's own program, or a module of the framework."""
    default_program: str = OWN_PROGRAM
    """The file taken where PROGRAM is not set; empty where the program is a module."""
    arguments: tuple[str, ...] = ()
    """Shell words after the program."""
    argument_files: tuple[str, ...] = ()
    """Files with one argument a line, handed to the program first."""
    launcher: Literal["torch", "accelerate", "ezpz", "horovod", "none"] = "torch"
    """What starts the processes of a node; none: the one process is told of no ranks."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What a user must set, with what it is."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the framework reads."""
    needed: Mapping[str, str] = field(default_factory=dict)
    """Files and folders/ that a user must bring, with what they are."""
    saves: bool = False
    """Whether these files make the program save into CHECKPOINTS every `Slot.save_every` steps and
    go on from the last; where not, the README asks the user's program to."""
    resume: Resume | None = None
    """How it is told to go on; None where it finds the last checkpoint by itself."""
    notes: tuple[str, ...] = ()
    """What the files cannot say: sentences of the README."""
    tells: bool = False
    """Whether its files say already which switches are on."""


def switched_on(recipe: Recipe, framework: Framework) -> Recipe:
    """The recipe with what its files and the job's environment are told for active switches."""
    for word, switch in framework.active_switches.items():
        for line in () if recipe.tells else switch.fill_arguments(word):
            recipe = _add_switch_line(recipe, word, switch, line)
    return replace(recipe, environment={**recipe.environment, **framework.environment})


def _add_switch_line(recipe: Recipe, word: str, switch: Switch, line: str) -> Recipe:
    """The recipe with one line more in a file, or with a sentence where none takes it."""
    files = list(recipe.files)
    place, colon, rest = line.partition(": ")
    name, argument = (place, rest) if colon else (files[0].name if files else "", line)
    for index, file in enumerate(files):
        text = with_lines(name, file.text, [argument]) if file.name == name else None
        if text is not None:
            files[index] = replace(file, text=text)
            return replace(recipe, files=tuple(files))
    sentence = f"Switch `{word}` ({switch.does}) is up to your program, in its own words."
    return replace(recipe, notes=tuple(dict.fromkeys((*recipe.notes, sentence))))
