"""Plan: the question, the ranked estimates, the verdict with reasons, and what was dropped.

`plan` searches; `estimate` evaluates one layout. Both take names, paths or descriptions.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.choose.advice import learning_rate_note, notes
from planner.choose.legality import check
from planner.choose.search import Found, order, search
from planner.choose.strategies import Verdict, judge
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine, Queue
from planner.describe.model.model import Model
from planner.describe.question import Question
from planner.describe.workload import Workload
from planner.errors import DescriptionError, LayoutError

__all__ = [
    "DEFAULT_FRAMEWORKS",
    "Dropped",
    "Plan",
    "estimate",
    "estimate_dict",
    "frameworks_for",
    "plan",
]

DEFAULT_FRAMEWORKS = ("ddp", "deepspeed", "fsdp2", "megatron-lm", "megatron-deepspeed")
"""Frameworks searched where none is named; those that do not run on the device are left out,
and Megatron-DeepSpeed stands in for Megatron-LM only where the latter does not run."""

_TOP = 20


@dataclass(frozen=True, slots=True)
class Dropped:
    """Candidates that fell for one reason."""

    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer to "which strategy fits, how much memory, how long a step"."""

    model: str
    num_params: int
    machine: str
    nodes: int
    num_devices: int
    workload: Workload
    num_candidates: int
    ranked: tuple[Estimate, ...]
    """Fastest layouts that fit, best first."""
    strategies: tuple[Verdict, ...]
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]
    queues: tuple[Queue, ...]
    """Queues of the machine that admit this many nodes."""

    @property
    def fits(self) -> bool:
        """Whether any layout fits."""
        return bool(self.ranked)

    @property
    def best(self) -> Estimate | None:
        """The fastest layout that fits."""
        return self.ranked[0] if self.ranked else None

    def duration_s(self, estimate: Estimate) -> float:
        """Time for the workload's tokens at an estimate's rate; 0 where none are asked [s]."""
        return self.workload.tokens / estimate.tokens_per_s

    def node_hours(self, estimate: Estimate) -> float:
        """Node-hours for the workload's tokens, or of one thousand steps where none are asked."""
        seconds = self.duration_s(estimate) or 1000 * estimate.step_time_s
        return self.nodes * seconds / 3600

    def to_json(self) -> str:
        """The plan as JSON text.

        >>> answer = plan("gpt2", "polaris", nodes=1, workload=Workload(global_batch=64,
        ...               sequence_length=1024))
        >>> Plan.from_json(answer.to_json()) == answer
        True
        """
        return json.dumps(self.as_dict(), indent=1, allow_nan=False)

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data."""
        ranked = [estimate_dict(e) for e in self.ranked]
        return {
            "model": self.model,
            "num_params": self.num_params,
            "machine": self.machine,
            "nodes": self.nodes,
            "num_devices": self.num_devices,
            "workload": self.workload.model_dump(mode="json"),
            "fits": self.fits,
            "best": ranked[0] if ranked else None,
            "node_hours": self.node_hours(self.ranked[0]) if self.ranked else None,
            "duration_s": self.duration_s(self.ranked[0]) if self.ranked else None,
            "num_candidates": self.num_candidates,
            "ranked": ranked,
            "strategies": [
                {
                    "name": v.name,
                    "fits": v.fits,
                    "why": v.why,
                    "fix": v.fix,
                    "estimate": estimate_dict(v.estimate) if v.estimate else None,
                }
                for v in self.strategies
            ],
            "dropped": [asdict(d) for d in self.dropped],
            "notes": list(self.notes),
            "queues": [queue.model_dump(mode="json") for queue in self.queues],
        }

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that `to_json` wrote; DescriptionError where the text is none."""
        try:
            data = json.loads(text)
            return cls(
                data["model"],
                data["num_params"],
                data["machine"],
                data["nodes"],
                data["num_devices"],
                Workload.described(data["workload"]),
                data["num_candidates"],
                tuple(_estimate_from(e) for e in data["ranked"]),
                tuple(
                    Verdict(
                        v["name"],
                        v["fits"],
                        v["why"],
                        v["fix"],
                        _estimate_from(v["estimate"]) if v["estimate"] else None,
                    )
                    for v in data["strategies"]
                ),
                tuple(Dropped(**d) for d in data["dropped"]),
                tuple(data["notes"]),
                tuple(Queue.described(q) for q in data["queues"]),
            )
        except (KeyError, TypeError, json.JSONDecodeError, RecursionError) as error:
            raise DescriptionError(
                f"not a plan: {error}; give the output of `planner plan --json`"
            ) from None


def estimate_dict(value: Estimate) -> dict[str, Any]:
    """An estimate as plain data, as in the plan's JSON."""
    return {
        "layout": value.layout.model_dump(mode="json"),
        **{
            name: getattr(value, name)
            for name in (
                "framework",
                "fits",
                "step_time_s",
                "interval_step_time_s",
                "step_time_parts_s",
                "tokens_per_s",
                "mfu",
                "memory_bytes",
                "worst_stage",
                "peak_moment",
                "host_memory_bytes",
            )
        },
    }


def _estimate_from(data: dict[str, Any]) -> Estimate:
    low, high = data["interval_step_time_s"]
    layout = Layout.described(data["layout"])
    return Estimate(**{**data, "layout": layout, "interval_step_time_s": (low, high)})


def plan(
    model: str | Model,
    machine: str | Machine,
    *,
    nodes: int,
    workload: Workload | None = None,
    frameworks: Sequence[str | Framework] = (),
    top: int = _TOP,
) -> Plan:
    """Search every legal layout of a job and say which is fastest, what fits and what does not.

    `model` and `machine` are catalogue names, paths or descriptions. Raises PlannerError
    subclasses for input that makes no sense; that nothing fits is a result.

    >>> answer = plan("gpt2", "polaris", nodes=1, workload=Workload(global_batch=64,
    ...               sequence_length=1024))
    >>> answer.fits, answer.best.layout.world
    (True, 4)
    """
    described, place = _model(model), _machine(machine)
    workload = workload or Workload()
    check_nodes(place, nodes)
    place.peak("bf16" if workload.precision == "fp8" else workload.precision)
    questions = {
        framework.name: Question(described, place, workload, framework)
        for framework in frameworks_for(frameworks, place)
    }
    world = nodes * place.node.num_devices
    found = {name: search(question, world) for name, question in questions.items()}
    ranked = _ranked(found, top)
    first = next(iter(questions.values()))
    dropped: Counter[str] = Counter()
    for part in found.values():
        dropped.update(part.dropped)
    return Plan(
        model=described.name,
        num_params=described.num_params,
        machine=place.name,
        nodes=nodes,
        num_devices=world,
        workload=workload,
        num_candidates=sum(len(part.estimates) for part in found.values()),
        ranked=tuple(ranked),
        strategies=tuple(judge(found, questions)),
        dropped=tuple(Dropped(*item) for item in sorted(dropped.items(), key=lambda i: (-i[1], i))),
        notes=(
            *notes(first, nodes, ranked[0] if ranked else None),
            learning_rate_note(workload.global_batch),
        ),
        queues=tuple(q for q in place.scheduler.queues if q.min_nodes <= nodes <= q.max_nodes),
    )


def _ranked(found: dict[str, Found], top: int) -> list[Estimate]:
    """The fastest of all frameworks; ties go to the framework searched first."""
    best = []
    for position, part in enumerate(found.values()):
        for index in order(part.estimates, top):
            best.append((position, part.estimates[int(index)]))
    best.sort(key=lambda pair: (round(pair[1].step_time_s, 9), pair[0]))
    return [estimate for _, estimate in best[:top]]


def estimate(
    model: str | Model,
    machine: str | Machine,
    layout: Layout,
    *,
    workload: Workload | None = None,
    framework: str | Framework | None = None,
) -> Estimate:
    """Memory and step time of one layout.

    Without a workload the global batch is the layout's own. Without a framework the first one
    that allows the layout is taken. Raises LayoutError where none does, with the legal values.

    >>> estimate("llama-3-8b", "polaris", Layout(dp=4, tp=4, zero_stage=1)).layout.world
    16
    """
    described, place = _model(model), _machine(machine)
    workload = workload or Workload(global_batch=layout.global_batch)
    place.peak("bf16" if workload.precision == "fp8" else workload.precision)
    check_nodes(place, -(-layout.world // place.node.num_devices))
    question = _question_for(described, place, workload, layout, framework)
    return estimate_layouts(question, Layouts.stack([layout]))[0]


def _question_for(
    model: Model,
    machine: Machine,
    workload: Workload,
    layout: Layout,
    framework: str | Framework | None,
) -> Question:
    if framework is not None:
        chosen = framework if isinstance(framework, Framework) else load_framework(framework)
        question = Question(model, machine, workload, chosen)
        check(question, layout)
        return question
    refusals: list[LayoutError] = []
    options = frameworks_for((), machine)
    for candidate in options:
        question = Question(model, machine, workload, candidate)
        try:
            check(question, layout)
        except LayoutError as error:
            refusals.append(error)
        else:
            return question
    # the framework that offers the most says most about the layout itself
    richest = max(
        range(len(options)), key=lambda i: (len(options[i].axes), len(options[i].recompute))
    )
    raise refusals[richest]


def check_nodes(machine: Machine, nodes: int) -> None:
    """Raise LayoutError where a machine does not have so many nodes."""
    if nodes < 1:
        raise LayoutError(f"nodes = {nodes} must be at least 1; give a positive number")
    if nodes > machine.num_nodes.value:
        raise LayoutError(
            f"nodes = {nodes} exceeds the {machine.num_nodes.value:.0f} nodes of {machine.name}; "
            "use fewer, or override num_nodes"
        )


def _model(model: str | Model) -> Model:
    return model if isinstance(model, Model) else load_model(model)


def _machine(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else load_machine(machine)


def frameworks_for(chosen: Sequence[str | Framework], machine: Machine) -> list[Framework]:
    """The chosen frameworks, or the default ones that run on the machine's devices."""
    runtime = machine.device.runtime
    if chosen:
        frameworks = [f if isinstance(f, Framework) else load_framework(f) for f in chosen]
        for framework in frameworks:
            if runtime not in framework.runtimes:
                raise LayoutError(
                    f"{framework.name} does not run on {runtime} devices ({machine.name}); use "
                    "another framework"
                )
        return frameworks
    loaded = [load_framework(name) for name in DEFAULT_FRAMEWORKS]
    running = [framework for framework in loaded if runtime in framework.runtimes]
    if any(framework.name == "megatron-lm" for framework in running):
        running = [framework for framework in running if framework.name != "megatron-deepspeed"]
    return running
