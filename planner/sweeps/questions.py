"""Questions: the combinations of a sweep, each with a key of everything its answer depends on."""

import functools
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from planner.choose.preferences import user_file
from planner.describe.base import Description
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.machine.variants import vary
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.sweeps.columns import cell
from planner.sweeps.definition import Kind, SweepPart, combinations

_PACKAGE = Path(__file__).parents[1]
_ANSWERING = (
    "errors.py", "units.py", "describe", "cost", "training", "choose",
    "sweeps/answer_cells.py", "sweeps/columns.py",
)  # fmt: skip
"""Files and folders of code that answers and their cells depend on."""
_KINDS = (".py", ".toml", ".csv")


def canonical(data: Mapping[str, Any]) -> str:
    """Write plain data as JSON with sorted keys."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(text: str) -> str:
    """Shorten a text to 128 bits of its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@functools.cache
def fingerprint() -> str:
    """Digest of the code, constants and user preferences that answers depend on."""
    code = hashlib.sha256()
    places = [_PACKAGE / name for name in _ANSWERING]
    files = [file for place in places for file in (place, *place.rglob("*"))]
    answering = [file for file in files if file.suffix in _KINDS]
    for path in sorted(answering, key=lambda path: path.as_posix()):
        # line ends differ between checkouts
        content = path.read_bytes().replace(b"\r\n", b"\n")
        code.update(f"{path.relative_to(_PACKAGE).as_posix()} {len(content)}\n".encode())
        code.update(content)
    if (preferences_file := user_file()) is not None:
        code.update(preferences_file.read_bytes())
    return code.hexdigest()[:32]


NAMED = ("sequence_length", "global_batch", "precision", "optimizer")
"""Workload fields that are columns of every table."""
_ORDER = ("model", "machine", "nodes", "frameworks", "workload", "layout", "exact")
"""Lists of a sweep; the last changes fastest from row to row."""

_TASK_SIZES: dict[Kind, int] = {"plan": 4, "estimate": 1000}
"""Most questions per task: about a second of work, so that a kill loses little."""
_MIN_TASKS: dict[Kind, int] = {"plan": 32, "estimate": 8}
"""Tasks to split a small sweep into, so that no worker waits long for the last one."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question, with descriptions referenced by digests of their content."""

    key: str
    model: str
    machine: str
    frameworks: tuple[str, ...]
    """Empty: the planner's default set."""
    nodes: int | None
    workload: dict[str, Any]
    layout: dict[str, Any]
    exact: bool
    cells_of_lists: tuple[dict[str, Any], ...]
    """Cells by list of the sweep, which questions share: a copy of each would be most of it."""

    @property
    def cells(self) -> dict[str, Any]:
        """Cells of the columns that describe the question."""
        return {name: value for cells in self.cells_of_lists for name, value in cells.items()}


@dataclass(frozen=True, slots=True)
class QuestionList:
    """All questions of a sweep in order, without duplicates."""

    kind: Kind
    questions: tuple[Question, ...]
    num_stated: int
    descriptions: dict[str, str]
    """Content of models, machines and frameworks as JSON, by digest."""


@dataclass(frozen=True, slots=True)
class Task:
    """Questions that one worker answers in a row, with the descriptions that they need."""

    kind: Kind
    fingerprint: str
    questions: tuple[Question, ...]
    descriptions: dict[str, str]


def list_questions(parts: Sequence[SweepPart]) -> QuestionList:
    """List the questions of a sweep; raises PlannerError for an unknown name or unreadable file."""
    descriptions: dict[str, str] = {}
    questions: dict[tuple[Any, ...], Question] = {}
    for part in parts:
        for question in _questions_of(part, descriptions):
            # two overrides may make the same machine: one question, two rows
            variant = question.cells_of_lists[_ORDER.index("machine")]
            questions.setdefault((question.key, *variant.values()), question)
    num_stated = sum(part.num_questions for part in parts)
    return QuestionList(parts[0].kind, tuple(questions.values()), num_stated, descriptions)


class _Choice(NamedTuple):
    """One value of a list of a sweep, the text that it adds to a question's key, and its cells."""

    value: Any
    text: str
    cells: dict[str, Any]


def _questions_of(part: SweepPart, descriptions: dict[str, str]) -> Iterator[Question]:
    """Yield the questions of a part, adding the content of its descriptions to `descriptions`."""
    lists = {**_described_choices(part, descriptions), **_stated_choices(part)}
    head = f"{part.kind}\n{fingerprint()}"
    for choices in itertools.product(*(lists[name] for name in _ORDER)):
        key = digest("\n".join([head, *(choice.text for choice in choices)]))
        content = {name: choice.value for name, choice in zip(_ORDER, choices, strict=True)}
        yield Question(key, **content, cells_of_lists=tuple(choice.cells for choice in choices))


def _described_choices(part: SweepPart, descriptions: dict[str, str]) -> dict[str, list[_Choice]]:
    """Models, machines and frameworks, by the digest of their content."""

    def keep(description: Description) -> str:
        text = canonical(description.model_dump(mode="json"))
        descriptions[digest(text)] = text
        return digest(text)

    choices: dict[str, list[_Choice]] = {"model": [], "machine": [], "frameworks": []}
    # in this order: tasks are sorted by where a description comes first
    for model in (m if isinstance(m, Model) else load_model(m) for m in part.models):
        name = keep(model)
        choices["model"].append(_Choice(name, name, _usual_cells(model, part.kind)))
    variants = part.machines, part.sets, part.leave_free, part.devices
    for machine, words, free, devices in itertools.product(*variants):
        loaded = machine if isinstance(machine, Machine) else load_machine(machine)
        name = keep(varied := vary(loaded, words, free, devices))
        cells = {"set": " ".join(words), "leave_free_percent": free, "devices": devices}
        choices["machine"].append(_Choice(name, name, {"machine": varied.name, **cells}))
    for together in part.frameworks:
        searched = [f if isinstance(f, Framework) else load_framework(f) for f in together]
        names = {"asked_frameworks": " ".join(each.name for each in searched)}
        digests = tuple(map(keep, searched))
        choices["frameworks"].append(_Choice(digests, " ".join(digests), names))
    return choices


def _stated_choices(part: SweepPart) -> dict[str, list[_Choice]]:
    """Nodes, workloads, layouts and whether the job is kept to the letter."""
    nodes = [1 if each is None and part.kind == "plan" else each for each in part.nodes]
    return {
        "nodes": [_Choice(each, str(each), {"nodes": each}) for each in nodes],
        "workload": [
            _Choice(each, canonical(each), {name: cell(value) for name, value in each.items()})
            for each in combinations(part.workload)
        ],
        "layout": [
            _Choice(each, canonical(each), {"asked_layout": " ".join(words)})
            for each in combinations(part.layout)
            for words in [[f"{name}={cell(value)}" for name, value in each.items()]]
        ],
        "exact": [_Choice(each, str(each), {"exact": each}) for each in part.exact],
    }


def _usual_cells(model: Model, kind: Kind) -> dict[str, Any]:
    """The model's name, and the defaults of the workload fields that every table has."""
    defaults = {name: Workload.model_fields[name].default for name in NAMED}
    defaults["sequence_length"] = model.default_sequence_length
    if kind != "plan":
        defaults["global_batch"] = None  # the layout decides
    return {"model": model.name, **defaults}


def make_tasks(sweep: QuestionList, questions: Sequence[Question]) -> list[Task]:
    """Divide questions into tasks, ordered by machine and model."""
    places = {name: number for number, name in enumerate(sweep.descriptions)}
    ordered = sorted(questions, key=lambda q: (places[q.machine], places[q.model], q.frameworks))
    size = max(min(_TASK_SIZES[sweep.kind], -(-len(questions) // _MIN_TASKS[sweep.kind])), 1)
    tasks = []
    for start in range(0, len(ordered), size):
        part = tuple(ordered[start : start + size])
        needed = {name for q in part for name in (q.model, q.machine, *q.frameworks)}
        content = {name: sweep.descriptions[name] for name in sorted(needed)}
        tasks.append(Task(sweep.kind, fingerprint(), part, content))
    return tasks
