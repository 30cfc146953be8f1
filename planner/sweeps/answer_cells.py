"""Answers: the cells of the table that a worker computes for the questions of a task."""

import functools
import itertools
import json
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from planner.choose.jobs.job_spec import JobSpec
from planner.choose.micro_batch import best_micro_batch, micro_batch_options
from planner.choose.planning import estimate_jobs, job_of_layout, plan_job
from planner.choose.user_layouts import complete_layout
from planner.choose.verdicts.fixes import shortage_summary
from planner.cost.estimate import Estimate
from planner.cost.scenario.experience import Experience
from planner.describe.base import Description
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError, PlannerError, shorten
from planner.sweeps.columns import ANSWER_CELLS, FASTEST
from planner.sweeps.definition import Kind
from planner.sweeps.questions import Question, Task, fingerprint
from planner.training.steps import node_hours, training_time

Cells = dict[str, Any]
Answer = tuple[str, bytes, bool]
"""Key of a question, the compressed cells of its answer, and whether it is refused."""

_Options = list[tuple[JobSpec, Layout]]
"""Layouts of a question with their job."""

D = TypeVar("D", bound=Description)
T = TypeVar("T")


class _LoadedQuestion:
    """A question with its model, machine and frameworks loaded."""

    def __init__(self, task: Task, question: Question) -> None:
        content = task.descriptions
        self.model = _load(Model, content[question.model])
        self.machine = _load(Machine, content[question.machine])
        self.frameworks = [_load(Framework, content[name]) for name in question.frameworks]
        self.nodes = question.nodes
        self.workload, self.layout = question.workload, question.layout
        self.exact = question.exact

    @property
    def framework(self) -> Framework | None:
        """Framework of the stated layout; None: the first that allows it."""
        if len(self.frameworks) > 1:
            raise LayoutError(
                f"a layout needs one framework, not {len(self.frameworks)}; give each alone"
            )
        return self.frameworks[0] if self.frameworks else None


@functools.lru_cache(maxsize=256)
def _load(kind: type[D], text: str) -> D:
    """Load a description from its JSON text, once for all tasks of a worker."""
    return kind.described(json.loads(text))


def answer_task(task: Task) -> list[Answer]:
    """Answer a task; raises PlannerError if the worker has other code."""
    if task.fingerprint != fingerprint():
        raise PlannerError(
            f"the worker on {socket.gethostname()} runs a different planner version; "
            "install the same version on both"
        )
    loaded = [_or_refusal(_LoadedQuestion, task, question) for question in task.questions]
    if task.kind == "estimate":
        answers = _estimate_answers([_or_refusal(_options, question) for question in loaded])
    else:
        answers = [_or_refusal(_plan_cells, question) for question in loaded]
    return [
        (question.key, _packed(task.kind, cells), "error" in cells)
        for question, cells in zip(task.questions, answers, strict=True)
    ]


def _packed(kind: Kind, cells: Cells) -> bytes:
    """Compress the values of cells, without their names: a third of the bytes and half the time."""
    return zlib.compress(to_json([cells.get(name) for name in ANSWER_CELLS[kind]]), 1)


def cells_of(kind: Kind, answer: bytes) -> Cells:
    """Unpack the cells of an answer that are filled."""
    values = zip(ANSWER_CELLS[kind], from_json(zlib.decompress(answer)), strict=True)
    return {name: value for name, value in values if value is not None}


def _or_refusal(answer: Callable[..., T], *inputs: Any) -> T | Cells:
    """Answer, or the cells with the reason why there is none; an input may be such cells."""
    if isinstance(inputs[0], dict):
        return inputs[0]
    try:
        return answer(*inputs)
    except PlannerError as error:
        return _refused(str(error))
    except (OSError, MemoryError):
        raise  # a fault of the worker, not of the question: another call may answer it
    except Exception as error:
        fault = shorten(f"{type(error).__name__}: {error}", 200)
        return _refused(f"a fault of the planner ({fault}); please report it with this row")


def _refused(reason: str) -> Cells:
    # without an empty cell, `fits` is a boolean column by which pandas can filter
    return {"fits": False, "error": reason}


def _plan_cells(question: _LoadedQuestion) -> Cells:
    fields = {"sequence_length": question.model.default_sequence_length, **question.workload}
    workload = Workload.described(fields, where="workload")
    assert question.nodes is not None, "a plan has a number of nodes"
    job = JobSpec(
        question.model,
        question.machine,
        nodes=question.nodes,
        workload=workload,
        frameworks=question.frameworks,
        exact=question.exact,
    )
    result = plan_job(job)
    cells: Cells = {
        "num_devices": result.num_devices,
        "fits": result.fits,
        "num_candidates": result.num_candidates,
        "answered_nodes": result.nodes,
        "answered_batch": result.workload.global_batch,
        "answered_sequence": result.workload.sequence_length,
        "enough_nodes": result.enough_nodes,
    }
    if result.recommended is None or result.best is None:
        return {**cells, "why": result.why}
    fastest = {"layout": str(result.best.layout), **result.best.record()}
    advice = result.advice
    assert advice is not None, "what fits has a way to do the job"
    return {
        **cells,
        "advice": advice.sentence,
        "useful_tokens_per_s": advice.tokens_per_s,
        "duration_s": result.duration_s(result.recommended),
        "node_hours": result.node_hours(result.recommended),
        "layout": str(result.recommended.layout),
        **result.recommended.record(),
        **{f"fastest_{name}": fastest[name] for name in FASTEST},
    }


def _options(question: _LoadedQuestion) -> _Options:
    """The stated layout of a question, or one for each micro-batch that it leaves open."""
    model, machine = question.model, question.machine
    fields = {name: getattr(question, name) for name in ("nodes", "layout", "workload")}
    completed = complete_layout(model, machine, framework=question.framework, **fields)
    layout, framework = completed.layout, completed.framework
    job = job_of_layout(model, machine, layout, completed.workload, framework, Experience())
    options = micro_batch_options(layout) if completed.is_open else (layout,)
    return [(job, option) for option in options]


def _estimate_answers(questions: Sequence[_Options | Cells]) -> list[Cells]:
    """Estimate the layouts of all questions together; alone, if one of them is a fault."""
    jobs = [pair for options in questions if isinstance(options, list) for pair in options]
    try:
        results = iter(estimate_jobs(jobs))
    except Exception:
        results = iter(())
    return [_or_refusal(_estimate_cells, options, results) for options in questions]


def _estimate_cells(options: _Options, results: Iterator[Estimate | LayoutError]) -> Cells:
    job = options[0][0]
    estimates = list(itertools.islice(results, len(options))) or estimate_jobs(options)
    result = best_micro_batch(estimates)
    return {
        "num_devices": result.layout.world,
        "global_batch": job.workload.global_batch,
        "duration_s": training_time(job.workload, result),
        "node_hours": node_hours(job.nodes, job.workload, result),
        "layout": str(result.layout),
        **result.record(),
        "why": None if result.fits else shortage_summary(result, job.machine),
    }
