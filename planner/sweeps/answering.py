"""Answering: what a worker does, tasks of questions to cells of a table.

A question that is refused is a row with the reason; a fault of the planner's own is one, too, so
that a sweep of a night does not end with it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import socket
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from planner.choose.planning import estimate, plan
from planner.choose.user_layouts.completion import complete_layout
from planner.choose.verdicts.fixes import shortage_summary
from planner.cost.scenario import Scenario
from planner.describe.base import Description
from planner.describe.catalogue import load_framework
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError, PlannerError, shorten
from planner.sweeps.columns import FASTEST, cell
from planner.sweeps.fingerprint import fingerprint
from planner.sweeps.questions import Asked, Task
from planner.sweeps.stated import Kind
from planner.training.steps import node_hours, training_time

__all__ = ["Answer", "Cells", "answer"]

Cells = dict[str, Any]
Answer = tuple[str, Cells]
"""The key of a question, and the cells of its answer."""

D = TypeVar("D", bound=Description)
Ask = Callable[["_Job"], Cells]


class _Job:
    """A question with its descriptions read."""

    def __init__(self, task: Task, question: Asked) -> None:
        content = task.described
        self.model = _described(Model, content[question.model])
        self.machine = _described(Machine, content[question.machine])
        self.frameworks = [_described(Framework, content[name]) for name in question.frameworks]
        self.nodes, self.stage = question.nodes, question.stage
        self.workload, self.layout = question.workload, question.layout

    @property
    def framework(self) -> Framework | None:
        """The one framework of a layout."""
        if len(self.frameworks) > 1:
            raise LayoutError(
                f"a layout is of one framework, not of {len(self.frameworks)}; give each alone"
            )
        return self.frameworks[0] if self.frameworks else None


@functools.lru_cache(maxsize=256)
def _described(kind: type[D], text: str) -> D:
    """A description from its content; the same object for the next task that has it."""
    return kind.described(json.loads(text))


def answer(task: Task) -> list[Answer]:
    """Answers of a task's questions, in order.

    Raises PlannerError where this worker has another planner than who asks, or lacks torch.
    """
    if task.fingerprint != fingerprint():
        raise PlannerError(
            f"a worker on {socket.gethostname()} has other code of the planner than who asks it; "
            "install the same version on both"
        )
    with _asking(task.kind) as ask:
        return [(question.key, _cells(ask, task, question)) for question in task.asked]


def _cells(ask: Ask, task: Task, question: Asked) -> Cells:
    try:
        found = ask(_Job(task, question))
    except PlannerError as error:
        return _refused(task.kind, str(error))
    except (OSError, MemoryError):
        raise  # of the worker, not of the question: asked again it may be answered
    except Exception as error:
        why = shorten(f"{type(error).__name__}: {error}", 200)
        return _refused(
            task.kind, f"a fault of the planner ({why}); please report it with this row"
        )
    return {name: value for name, value in found.items() if value is not None}


def _refused(kind: Kind, why: str) -> Cells:
    # a column of truth values alone is one to filter by
    return {"error": why} if kind == "trace" else {"fits": False, "error": why}


@contextlib.contextmanager
def _asking(kind: Kind) -> Iterator[Ask]:
    if kind != "trace":
        yield {"plan": _planned, "estimate": _estimated}[kind]
        return
    if importlib.util.find_spec("torch") is None:
        raise PlannerError(
            "traces need torch; install it with `pip install 'parallelism-planner[torch]'`"
        )
    from planner.validate.trace.tracer import Tracer

    with Tracer() as tracer:  # it imports torch once for all of them
        yield functools.partial(_traced, tracer)


def _planned(job: _Job) -> Cells:
    fields = {"sequence_length": job.model.default_sequence_length, **job.workload}
    workload = Workload.described(fields, where="workload")
    assert job.nodes is not None, "a plan is asked on some nodes"
    found = plan(
        job.model,
        job.machine,
        nodes=job.nodes,
        workload=workload,
        frameworks=job.frameworks,
    )
    cells: Cells = {
        "num_devices": found.num_devices,
        "fits": found.fits,
        "num_candidates": found.num_candidates,
        "answered_batch": found.workload.global_batch,
        "enough_nodes": found.enough_nodes,
    }
    if found.recommended is None or found.best is None:
        return {**cells, "why": found.why}
    fastest = {"layout": str(found.best.layout), **found.best.record()}
    return {
        **cells,
        "duration_s": found.duration_s(found.recommended),
        "node_hours": found.node_hours(found.recommended),
        "layout": str(found.recommended.layout),
        **found.recommended.record(),
        **{f"fastest_{name}": fastest[name] for name in FASTEST},
    }


def _estimated(job: _Job) -> Cells:
    whole = complete_layout(
        job.model,
        job.machine,
        nodes=job.nodes,
        layout=job.layout,
        workload=job.workload,
        framework=job.framework,
    )
    found = estimate(
        job.model,
        job.machine,
        whole.layout,
        workload=whole.workload,
        framework=whole.framework,
    )
    nodes = -(-whole.layout.world // job.machine.node.num_devices)
    return {
        "num_devices": whole.layout.world,
        "global_batch": whole.workload.global_batch,
        "duration_s": training_time(whole.workload, found),
        "node_hours": node_hours(nodes, whole.workload, found),
        "layout": str(whole.layout),
        **found.record(),
        "why": None if found.fits else shortage_summary(found, job.machine),
    }


def _traced(tracer: Any, job: _Job) -> Cells:
    from planner.validate.trace.compare import compare
    from planner.validate.trace.stage_trace import trace

    whole = complete_layout(
        job.model,
        job.machine,
        nodes=job.nodes,
        layout=job.layout,
        workload={"dropout": 0.0, **job.workload},  # neither a trace nor its estimate has any
        framework=job.framework or load_framework("fsdp2"),
    )
    assert whole.framework is not None
    asked = Scenario(job.model, job.machine, whole.workload, whole.framework)
    found = compare(asked, whole.layout, trace(asked, whole.layout, stage=job.stage, tracer=tracer))
    layout = whole.layout.model_dump(mode="json")
    alike = all(
        (one.count, one.traced_bytes) == (one.estimated_count, one.estimated_bytes)
        for one in found.collectives
    )
    return {
        "num_devices": whole.layout.world,
        "global_batch": whole.workload.global_batch,
        "layout": str(whole.layout),
        "framework": whole.framework.name,
        **{name: cell(value) for name, value in layout.items()},
        **{f"traced_{part.name}_bytes": part.traced_bytes for part in found.parts},
        **{f"estimated_{part.name}_bytes": part.estimated_bytes for part in found.parts},
        "collectives_agree": alike,
        "torch": found.trace.torch,
    }
