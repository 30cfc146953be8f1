"""Checks of a job independent of its layouts, and of layouts by all rules."""

import functools
import math
import numbers
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from planner.choose.legality.degree_rules import DEGREES
from planner.choose.legality.memory_rules import OFFLOADED, RECOMPUTED, SHARDING, TRACED
from planner.choose.legality.pipeline_rules import SCHEDULED, STAGES
from planner.choose.legality.rule import Rule, one_of
from planner.cost.arrays import Mask, broadcast_to
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.base import quote
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.describe.model.model import Model
from planner.describe.workload import Workload, parse_ramp
from planner.errors import DescriptionError, LayoutError, shorten
from planner.units import counted, either

_USUAL = Workload.model_fields


def check_count(name: str, value: int) -> None:
    """Raise LayoutError unless a value is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        shown = shorten(repr(value))
        raise LayoutError(f"{name} = {shown} is not a whole number; write for example {name}=4")
    if value < 1:
        raise LayoutError(f"{name} = {value} must be at least 1; give a positive number")


def check_nodes(machine: Machine, nodes: int) -> None:
    """Raise LayoutError unless `nodes` is a number of nodes that the machine has."""
    check_count("nodes", nodes)
    if nodes > machine.num_nodes.value:
        available = counted(machine.num_nodes.value, "node")
        raise LayoutError(f"nodes = {nodes} exceeds the {available} of {machine.name}; use fewer")


def check_workload(workload: Workload | None) -> None:
    """Raise DescriptionError if the value is not a Workload or None."""
    if not isinstance(workload, Workload | None):
        raise DescriptionError(
            f"workload = {quote(workload)} is not a planner.Workload; write for example "
            "planner.Workload(sequence_length=4096, global_batch=256)"
        )


def check_sequence(model: Model, workload: Workload) -> None:
    """Raise LayoutError if the model cannot train on the workload's sequences."""
    length = workload.sequence_length
    if model.traced is not None and workload.adapted:
        raise LayoutError(
            f"adapters and frozen parts of {model.name}, a traced module, are not supported; build "
            "them into the module, and leave these options out"
        )
    if model.counts_samples:
        _check_samples(model, workload)
        return
    rows = model.max_sequence_length or model.num_position_rows
    if model.position == "learned" and model.kind != "vision" and rows and length > rows:
        raise LayoutError(
            f"sequence length {length} exceeds the {rows} learned positions of {model.name}; "
            f"use a sequence of {rows} or less"
        )


def _check_samples(model: Model, workload: Workload) -> None:
    """Raise LayoutError for settings that a model trained on samples does not support."""
    if (length := workload.sequence_length) != 1:
        raise LayoutError(
            f"sequence length {length}: {model.name} trains on samples, not sequences; use "
            "sequence_length = 1, its default"
        )
    if workload.precision == "fp8":
        raise LayoutError(
            f"precision = fp8: {model.name} is supported in 16 bits or more; use bf16 or fp16"
        )
    if workload.lora_rank:
        raise LayoutError(
            f"lora_rank = {workload.lora_rank}: {model.name} has no matrices that LoRA adapts; "
            "leave it out"
        )


def check_routing(model: Model, workload: Workload) -> None:
    """Raise LayoutError for expert settings that do not suit the model."""
    experts, uneven = model.experts, workload.expert_imbalance
    if experts is None:
        names = ("expert_imbalance", "expert_capacity", "pad_experts")
        changed = [name for name in names if getattr(workload, name) != _USUAL[name].default]
        if changed:
            raise LayoutError(
                f"{changed[0]} = {getattr(workload, changed[0]):g}: {model.name} has no experts; "
                "leave it out"
            )
    elif uneven > (most := experts.num_experts / experts.top_k):
        raise LayoutError(
            f"expert_imbalance = {uneven:g}: a token of {model.name} visits {experts.top_k} "
            f"different experts of {experts.num_experts}, so that no rank gets more than "
            f"{most:g} times the mean; use {most:g} or less"
        )


def check_ramp(workload: Workload) -> None:
    """Raise LayoutError if a batch-size ramp has steps of the global batch or more."""
    largest = max((size for _, size in parse_ramp(workload.ramp)), default=0)
    if largest >= workload.global_batch:
        raise LayoutError(
            f"ramp = {shorten(workload.ramp)} has steps of {largest} sequences, which must be less "
            f"than global_batch = {workload.global_batch}; use smaller batches in the ramp, or a "
            "larger global_batch"
        )


def check_tolerance(tolerance: float) -> None:
    """Raise LayoutError unless the tolerance is a finite number of at least 0."""
    if not (isinstance(tolerance, numbers.Real) and 0 <= tolerance < math.inf):
        raise LayoutError(
            f"tolerance = {quote(tolerance)} must be at least 0 and finite: the share by which a "
            "simpler layout may be slower than the fastest"
        )


def check_division(machine: Machine, nodes: int | None, dp: int | None, other_degrees: int) -> int:
    """Data-parallel degree that fills the nodes. Raises LayoutError if the degrees do not fit."""
    if nodes is not None and nodes < 1:
        raise LayoutError(f"nodes = {nodes} must be at least 1; give a positive number")
    if nodes is None or other_degrees < 1:
        return 1 if dp is None else dp
    devices = machine.node.num_devices
    world, product = nodes * devices, other_degrees if dp is None else dp * other_degrees
    where = f"the {world} devices of {counted(nodes, 'node')} of {machine.name}"
    if dp is None and world % other_degrees:
        raise LayoutError(
            f"tp * pp * cp = {product} does not divide {where}; {one_of(max(world, 1))}"
        )
    if dp is not None and product != world:
        ways = [f"dp = {world // other_degrees}"] * (world % other_degrees == 0)
        ways += [counted(product // devices, "node")] * (product % devices == 0 < product)
        use = either(ways or [f"degrees whose product is {world}"])
        raise LayoutError(f"dp * tp * pp * cp = {product} is not {where}; use {use}")
    return dp or world // other_degrees


RULES: tuple[Rule, ...] = (
    *(*TRACED, *DEGREES, *STAGES, *SHARDING),
    *(*RECOMPUTED, *SCHEDULED, *OFFLOADED),
)


_ALL = frozenset(Layout.model_fields)
_BATCH_COLUMNS = frozenset({"dp", "micro_batch", "grad_accumulation"})
"""Columns that a refinement of the search never changes."""


def legal(
    scenario: Scenario,
    layouts: Layouts,
    columns: Collection[str],
    checked: frozenset[str] = frozenset(),
) -> tuple[Mask, dict[str, int]]:
    """Check layouts by the rules on these columns but `checked` ones; count failures by reason."""
    alive = np.ones(np.shape(layouts.dp), dtype=np.bool_)
    dropped: dict[str, int] = {}
    for rule in _rules_of(frozenset(columns), checked):
        holds = rule.holds(scenario, layouts)
        if fell := int(np.count_nonzero(alive & np.logical_not(holds))):
            dropped[rule.reason] = dropped.get(rule.reason, 0) + fell
            alive &= holds
    return alive, dropped


@functools.cache
def _rules_of(columns: frozenset[str], checked: frozenset[str]) -> tuple[Rule, ...]:
    return tuple(rule for rule in RULES if rule.needs <= columns and not rule.needs <= checked)


def legal_layouts(scenario: Scenario, layouts: Layouts) -> Layouts:
    """Keep the layouts that meet every rule."""
    is_legal, _ = legal(scenario, layouts, _ALL)
    return layouts.take(np.flatnonzero(is_legal))


def legal_refined(scenario: Scenario, layouts: Layouts) -> Mask:
    """True for refined layouts that meet every rule that a refinement can break."""
    return legal(scenario, layouts, _ALL, _BATCH_COLUMNS)[0]


def check(scenario: Scenario, layout: Layout) -> None:
    """Raise LayoutError for the first rule that one layout breaks, with the legal values."""
    if why := scenario.framework.refuses(scenario.machine, scenario.workload, scenario.model):
        raise LayoutError(why)
    check_sequence(scenario.model, scenario.workload)
    check_routing(scenario.model, scenario.workload)
    check_ramp(scenario.workload)
    for rule in broken(scenario, Layouts.of(layout)):
        raise LayoutError(rule.message(scenario, layout))


def broken(scenario: Scenario, layout: Layouts) -> Iterator[Rule]:
    """Yield the rules that one layout breaks, in their order."""
    return (rule for rule in RULES if not rule.holds(scenario, layout))


def refusals_of(
    scenarios: Sequence[Scenario], layouts: Layouts, fills_batch: bool = False
) -> list[LayoutError]:
    """Errors of layouts that no scenario allows: the rule that each breaks in the closest one."""
    # the closest breaks fewest rules, then has the most axes and recompute modes
    ordered = sorted(scenarios, key=lambda q: _breadth(q.framework))
    rules = _rules_of(_ALL, _BATCH_COLUMNS if fills_batch else frozenset())
    rows = np.shape(layouts.dp)
    holds = np.array(
        [[broadcast_to(rule.holds(q, layouts), rows) for rule in rules] for q in ordered]
    )
    closest = np.argmin(np.sum(~holds, axis=1), axis=0)
    first = np.argmin(holds, axis=1)
    refusals = []
    for row, (number, layout) in enumerate(zip(closest.tolist(), layouts, strict=True)):
        nearest = ordered[number]
        refused = nearest.framework.refuses(nearest.machine, nearest.workload, nearest.model)
        refusals.append(LayoutError(refused or rules[first[number, row]].message(nearest, layout)))
    return refusals


def _breadth(framework: Framework) -> tuple[bool, int, int]:
    """Sort key: frameworks with the most axes and recompute modes first, variants last."""
    return bool(framework.instead_of), -len(framework.axes), -len(framework.recompute)
