"""Question: a function of a job, callable with a model and a machine or with a job."""

import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, Protocol, TypedDict, cast

from planner.ask.answer import Answer, Row
from planner.ask.option import Option, Parameter, parameters
from planner.ask.plan_point import Infeasible, PlanPoint
from planner.choose.jobs.job_spec import JobSpec
from planner.cost.scenario.experience import Experience
from planner.describe.base import Description
from planner.describe.catalogue import catalogue_name
from planner.describe.files import read_toml
from planner.describe.framework.framework import Framework
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload
from planner.errors import LayoutError, UnknownNameError


class JobFields(TypedDict, total=False):
    """Job fields that every question takes, like `planner.plan`."""

    workload: Workload | None
    frameworks: str | Framework | Sequence[str | Framework]
    tolerance: float | None
    experience: Experience


_DEFAULTS = {"workload": None, "frameworks": (), "tolerance": None, "experience": Experience()}
_BOUNDS = read_toml(Path(__file__).with_name("options.toml"))


@dataclass(frozen=True, slots=True)
class Findings:
    """Result of a question: an Answer without the question's input."""

    verdict: str
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    success: bool = True
    """True if something fits, or a limit can be met."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Result values for programs; `Answer.asked` lists them after the options."""


def nothing_fits(point: PlanPoint) -> Findings:
    """Return the findings of a job for which no layout fits."""
    verdict = f"Nothing fits on {point.place}: {point.reason}."
    return Findings(verdict, [point.row()], success=False)


P = ParamSpec("P")


class Question(Protocol[P]):
    """A question as users call it."""

    __name__: str
    __signature__: inspect.Signature
    summary: str
    """The question in one line, for lists of questions."""
    description: str
    """The full description, for help texts."""

    def __call__(
        self, model: str | Model, machine: str | Machine, *args: P.args, **kwargs: P.kwargs
    ) -> Answer:
        """Answer the question for a model on a machine."""

    def of_job(self, job: JobSpec, /, **options: Any) -> Answer:
        """Answer the question for a job; the option `nodes` defaults to the job's nodes."""


def question(function: Callable[Concatenate[JobSpec, P], Findings]) -> Question[P]:
    """Turn a function of a job and options into a question that validates its arguments."""
    signature = _public_signature(function)
    options = {option.name: option for option in parameters(signature)}
    answer = functools.partial(_answer, function, options)

    def checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
        for name in arguments:
            if name not in signature.parameters:
                _refuse(name, signature, function.__name__)
        return {
            name: options[name].checked(value) if name in options else value
            for name, value in arguments.items()
        }

    @functools.wraps(function)
    def ask(model: str | Model, machine: str | Machine, **arguments: Any) -> Answer:
        values = checked(arguments)
        fields = {name: values.pop(name) for name in _DEFAULTS if name in values}
        return answer(JobSpec(model, machine, **fields), values)

    def of_job(job: JobSpec, /, **arguments: Any) -> Answer:
        nodes = {"nodes": job.nodes} if "nodes" in options else {}
        return answer(job, {**nodes, **checked(arguments)})

    public = cast("Question[P]", ask)
    public.__signature__ = signature
    public.of_job = of_job  # type: ignore[method-assign]
    public.description = inspect.getdoc(function) or ""
    public.summary = public.description.splitlines()[0].rstrip(".")
    return public


def _public_signature(function: Callable[..., Findings]) -> inspect.Signature:
    """Return the public signature: model, machine, the options, then the job fields."""
    _, *options, _ = inspect.signature(function, eval_str=True).parameters.values()
    bounds = _BOUNDS["every"] | _BOUNDS.get(function.__name__, {})
    # parameters in the table get its help text and bounds
    for place, each in enumerate(options):
        if each.name in bounds:
            kind: Any = each.annotation
            option = Option(**bounds[each.name])
            options[place] = each.replace(annotation=Annotated[kind, option])
    hints, new = typing.get_type_hints(JobFields), inspect.Parameter
    places = {"model": str | Model, "machine": str | Machine}
    return inspect.Signature(
        [
            *(new(name, new.POSITIONAL_OR_KEYWORD, annotation=a) for name, a in places.items()),
            *options,
            *(
                new(name, new.KEYWORD_ONLY, annotation=hints[name], default=default)
                for name, default in _DEFAULTS.items()
            ),
        ],
        return_annotation=Answer,
    )


def _refuse(name: str, signature: inspect.Signature, question_name: str) -> typing.NoReturn:
    if name in Workload.model_fields:
        raise LayoutError(
            f"{name} is a field of the workload; give workload=planner.Workload({name}=...)"
        )
    listing = f"see `help(planner.ask.{question_name})`"
    raise UnknownNameError("argument", name, signature.parameters, listing)


def _answer(
    function: Callable[..., Findings],
    options: Mapping[str, Parameter],
    job: JobSpec,
    arguments: Mapping[str, Any],
) -> Answer:
    """Run a question and add its input to the answer."""
    try:
        findings = function(job, **arguments)
    except Infeasible as error:
        findings = nothing_fits(error.point)
    runs = {"step_time": job.experience.step_time, "memory": job.experience.memory}
    inputs = {
        "model": name_or_fields("model", job.model),
        "machine": name_or_fields("machine", job.machine),
        "workload": job.workload.model_dump(mode="json"),
        "frameworks": [name_or_fields("framework", each) for each in job.frameworks],
        "tolerance": job.tolerance,
        "measured_runs": {name: 0 if each is None else len(each) for name, each in runs.items()},
        **{name: arguments.get(name, option.default) for name, option in options.items()},
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
    """Return a description's name if the catalogue has the same description, else all fields."""
    return catalogue_name(kind, description) or description.model_dump(mode="json")
