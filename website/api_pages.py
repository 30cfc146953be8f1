"""Reference of the Python interface: every public name, from its docstring."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import planner
from planner.ask import QUESTIONS

_GROUPS = {
    "answers": (
        "Jobs and answers",
        "What is asked, and what comes back.",
        ("Job", "plan", "Plan", "estimate", "Estimate", "simulate", "Simulation"),
    ),
    "descriptions": (
        "Descriptions",
        "Model, machine, framework, layout and workload, and the catalogues they come from.",
        (
            *("Model", "Machine", "Framework", "Layout", "Workload"),
            *("load_model", "load_machine", "load_framework", "load_dataset"),
        ),
    ),
    "trainings": (
        "Whole trainings",
        "Time, energy and money from the first job to the last step.",
        (
            *("whole_training", "WholeTraining", "Training", "Dataset", "Loader", "Evaluation"),
            *("Checkpoints", "Failures", "StartUp", "Charges"),
        ),
    ),
    "files": (
        "Files",
        "Files that run a layout, files of frameworks, measured runs, and errors.",
        (
            *("emit", "read_configuration", "Configuration", "estimate_configuration", "learn"),
            *("Learned", "html", "PlannerError"),
        ),
    ),
    "sweeps": ("Sweeps", "Thousands of questions, one table.", ("sweep", "Swept")),
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield a page for every group of public names, one of questions and one of figures."""
    listed = {name for _, _, names in _GROUPS.values() for name in names}
    public = set(vars(planner)["__all__"]) - {"ask"}
    assert listed == public, f"public names without a page: {sorted(listed ^ public)}"
    for page, (title, summary, names) in _GROUPS.items():
        parts = [f"# {title}\n\n{summary}\n\n"]
        parts += [f"::: {_place(name)}\n\n" for name in names]
        yield f"reference/api/{page}.md", "".join(parts)
    yield "reference/api/ask.md", _questions()
    yield "reference/api/figures.md", _figures()


def _place(name: str) -> str:
    """Return where a public name is defined."""
    value = getattr(planner, name)
    return f"{value.__module__}.{value.__qualname__}"


def _questions() -> str:
    parts = [
        "# Questions\n\n`planner.ask.NAME(model, machine, ...)` and `job.ask.NAME(...)` answer "
        "what takes many plans. Each returns an `Answer`.\n\n::: planner.ask.Answer\n\n"
    ]
    for name, question in sorted(QUESTIONS.items()):
        call = name.replace("-", "_")
        parts.append(f"## ask.{call}\n\n{question.summary}\n\n")
        text = inspect.cleandoc(question.description or "")
        if text and text != question.summary:
            parts.append(f"{text}\n\n")
    return "".join(parts)


def _figures() -> str:
    parts = [
        "# Figures\n\n`planner.figures.NAME(result)` returns a plotly figure (extra `app`). "
        "[The gallery](../../gallery.md) shows them.\n\n"
    ]
    figures = importlib.import_module("planner.figures")
    for name in figures.__all__:
        draw = getattr(figures, name)
        arguments = ", ".join(
            _argument(each) for each in inspect.signature(draw).parameters.values()
        )
        text = inspect.getdoc(draw) or ""
        parts.append(f"## figures.{name}\n\n```python\n{name}({arguments})\n```\n\n{text}\n\n")
    return "".join(parts)


def _argument(parameter: inspect.Parameter) -> str:
    """Write a parameter; defaults that are objects are left out."""
    default = parameter.default
    if default is parameter.empty:
        return parameter.name
    plain = default is None or isinstance(default, (str, int, float, tuple))
    return f"{parameter.name}={default!r}" if plain else f"{parameter.name}=..."
