"""Check many layouts, or one, by all rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.choose.legality.degree_rules import DEGREES
from planner.choose.legality.job_checks import check_ramp, check_routing, check_sequence
from planner.choose.legality.memory_rules import OFFLOADED, RECOMPUTED, TRACED
from planner.choose.legality.pipeline_rules import SCHEDULED, STAGES
from planner.choose.legality.rule import Rule
from planner.choose.legality.sharding_rules import SHARDING
from planner.cost.arrays import Mask
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.layout import Layout
from planner.errors import LayoutError

__all__ = ["RULES", "broken", "check", "legal", "legal_layouts"]

RULES: tuple[Rule, ...] = (
    *(*TRACED, *DEGREES, *STAGES, *SHARDING),
    *(*RECOMPUTED, *SCHEDULED, *OFFLOADED),
)


def legal(scenario: Scenario, layouts: Layouts, columns: set[str]) -> tuple[Mask, dict[str, int]]:
    """Check layouts by every rule that reads no other columns than these."""
    alive = np.ones(np.shape(layouts.dp), dtype=np.bool_)
    dropped: dict[str, int] = {}
    for rule in RULES:
        if not rule.needs <= columns:
            continue
        holds = rule.holds(scenario, layouts)
        if fell := int(np.count_nonzero(alive & np.logical_not(holds))):
            dropped[rule.reason] = dropped.get(rule.reason, 0) + fell
            alive &= holds
    return alive, dropped


def legal_layouts(scenario: Scenario, layouts: Layouts) -> Layouts:
    """The layouts that keep every rule."""
    is_legal, _ = legal(scenario, layouts, set(Layout.model_fields))
    return layouts.take(np.flatnonzero(is_legal))


def check(scenario: Scenario, layout: Layout) -> None:
    """Raise LayoutError for the first rule that one layout breaks, with the legal values."""
    if why := scenario.framework.refuses(scenario.machine, scenario.workload, scenario.model):
        raise LayoutError(why)
    check_sequence(scenario.model, scenario.workload)
    check_routing(scenario.model, scenario.workload)
    check_ramp(scenario.workload)
    for rule in broken(scenario, layout):
        raise LayoutError(rule.message(scenario, layout))


def broken(scenario: Scenario, layout: Layout) -> Iterator[Rule]:
    """Yield the rules that one layout breaks, in their order."""
    layouts = Layouts.of(layout)
    return (rule for rule in RULES if not np.all(rule.holds(scenario, layouts)))
