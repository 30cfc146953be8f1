"""Question: a function of a job that is called with a model and a machine, or with a job."""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, cast

from planner.ask.answer import Answer, Row
from planner.ask.option import parameters
from planner.ask.plan_point import Infeasible, PlanPoint
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.scenario.experience import Experience
from planner.describe.base import Description
from planner.describe.catalogue import catalogue_name
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError, UnknownNameError

__all__ = [
    "Findings",
    "JobFields",
    "Question",
    "name_or_fields",
    "needs_tokens",
    "nothing_fits",
    "question",
]


class JobFields(TypedDict, total=False):
    """Fields of a job that every question takes, as `planner.plan` does."""

    workload: Workload | None
    frameworks: str | Framework | Sequence[str | Framework]
    tolerance: float | None
    experience: Experience


_DEFAULTS = {"workload": None, "frameworks": (), "tolerance": None, "experience": Experience()}


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a question: an Answer without the question's input."""

    verdict: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    success: bool = True
    """True if something fits, or a limit can be met."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Values for programs, which `Answer.asked` holds beside the options."""


def nothing_fits(point: PlanPoint, **values: Any) -> Findings:
    """The findings where no layout of a job fits."""
    verdict = f"Nothing fits on {point.place}: {point.reason}."
    return Findings(verdict, [point.row()], success=False, values=values)


P = ParamSpec("P")


class Question(Protocol[P]):
    """A question as users call it."""

    __name__: str
    __signature__: inspect.Signature
    summary: str
    """The question in a line, for lists of questions."""
    description: str
    """The question in a paragraph, for help texts."""

    def __call__(
        self, model: str | Model, machine: str | Machine, *args: P.args, **kwargs: P.kwargs
    ) -> Answer:
        """Answer the question for a model on a machine."""

    def of_job(self, job: JobSpec, /, **options: Any) -> Answer:
        """Answer the question for a job; its nodes are the default of the option `nodes`."""


def question(function: Callable[Concatenate[JobSpec, P], Findings]) -> Question[P]:
    """Make a question of a function that takes a job and options.

    The question takes a model, a machine, the options, and the fields of JobFields. The function
    declares `**_: Unpack[JobFields]` so that type checkers know these fields. Values beyond an
    option's bounds and unknown arguments are refused; Infeasible becomes an answer.
    """

    @functools.wraps(function)
    def ask(model: str | Model, machine: str | Machine, **arguments: Any) -> Answer:
        options = _checked_options(public, arguments)
        fields = {name: options.pop(name) for name in _DEFAULTS if name in options}
        return _answer(function, JobSpec(model, machine, **fields), options)

    def of_job(job: JobSpec, /, **arguments: Any) -> Answer:
        options = _checked_options(public, arguments)
        if any(option.name == "nodes" for option in parameters(public)):
            options.setdefault("nodes", job.nodes)
        return _answer(function, job, options)

    public = cast("Question[P]", ask)
    public.__signature__ = _public_signature(function)
    public.of_job = of_job  # type: ignore[method-assign]
    public.description = inspect.getdoc(function) or ""
    public.summary = public.description.splitlines()[0].rstrip(".")
    return public


def _public_signature(function: Callable[..., Findings]) -> inspect.Signature:
    """Signature of the question: model and machine for the job, and the fields of a job."""
    _, *options, _ = inspect.signature(function, eval_str=True).parameters.values()
    hints = typing.get_type_hints(JobFields)
    keyword = inspect.Parameter.KEYWORD_ONLY
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    places = [
        inspect.Parameter("model", positional, annotation=str | Model),
        inspect.Parameter("machine", positional, annotation=str | Machine),
    ]
    fields = [
        inspect.Parameter(name, keyword, annotation=hints[name], default=default)
        for name, default in _DEFAULTS.items()
    ]
    return inspect.Signature([*places, *options, *fields], return_annotation=Answer)


def _checked_options(ask: Callable[..., Answer], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse unknown arguments and values beyond bounds; make values plain."""
    allowed = inspect.signature(ask).parameters
    for name in arguments:
        if name in allowed:
            continue
        if name in Workload.model_fields:
            raise LayoutError(
                f"{name} is a field of the workload; give workload=planner.Workload({name}=...)"
            )
        listing = f"`help(planner.ask.{ask.__name__})` says what they are"
        raise UnknownNameError("argument", name, allowed, listing)
    options = {each.name: each for each in parameters(ask)}
    return {
        name: options[name].checked(value) if name in options else value
        for name, value in arguments.items()
    }


def _answer(
    function: Callable[..., Findings], job: JobSpec, arguments: Mapping[str, Any]
) -> Answer:
    """Run a question, and put its input into the answer."""
    try:
        findings = function(job, **arguments)
    except Infeasible as error:
        findings = nothing_fits(error.point)
    step_time, memory = job.experience.step_time, job.experience.memory
    inputs = {
        "model": name_or_fields("model", job.model),
        "machine": name_or_fields("machine", job.machine),
        "workload": job.workload.model_dump(mode="json"),
        "frameworks": [name_or_fields("framework", each) for each in job.frameworks],
        "tolerance": job.tolerance,
        "measured_runs": {
            "step_time": 0 if step_time is None else len(step_time),
            "memory": 0 if memory is None else len(memory),
        },
        **{each.name: arguments.get(each.name, each.default) for each in parameters(function)},
        **findings.values,
    }
    return Answer(
        function.__name__.replace("_", "-"),
        json.loads(json.dumps(inputs)),
        findings.success,
        findings.verdict,
        tuple(findings.rows),
        tuple(findings.notes),
    )


def name_or_fields(kind: str, description: Description) -> Any:
    """The name of a description if the catalogue has the same under it, else all its fields."""
    return catalogue_name(kind, description) or description.model_dump(mode="json")


def needs_tokens(job: JobSpec, purpose: str) -> None:
    """Raise LayoutError where the workload does not state how long the training is."""
    if not job.workload.all_tokens:
        raise LayoutError(
            f"tokens = 0: {purpose} follows from how much is trained on; set tokens (such as "
            "300B), or samples and epochs"
        )
