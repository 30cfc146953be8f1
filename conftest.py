"""Doctest names: objects that every doctest of the package may use without an import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planner
from planner.cost.network.groups import Groups
from planner.cost.network.topology import group_view, unit_view
from planner.cost.operators.blocks import blocks_of
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages


def make_scenario(
    model: str | planner.Model = "llama-3-8b",
    framework: str = "megatron-lm",
    machine: str = "polaris",
    **workload: Any,
) -> Scenario:
    """Make a scenario from catalogue names and workload fields."""
    return Scenario(
        planner.load_model(model) if isinstance(model, str) else model,
        planner.load_machine(machine),
        planner.Workload(**workload),
        planner.load_framework(framework),
    )


@pytest.fixture(scope="session", autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """Add loaders, description classes, a prepared scenario and `make_scenario` to doctests."""
    doctest_namespace |= {
        "planner": planner,
        "np": np,
        "Layout": planner.Layout,
        "Layouts": Layouts,
        "Scenario": Scenario,
        "Workload": planner.Workload,
        "load_framework": planner.load_framework,
        "load_machine": planner.load_machine,
        "load_model": planner.load_model,
        "scenario": make_scenario(),
        "make_scenario": make_scenario,
        "blocks_of": blocks_of,
        "Stages": Stages,
        "Groups": Groups,
        "group_view": group_view,
        "unit_view": unit_view,
    }
