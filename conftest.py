"""Names that every doctest of the package may use without an import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planner
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts


@pytest.fixture(scope="session", autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """The catalogue's loaders, the descriptions, and one prepared scenario."""
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
        "scenario": Scenario(
            planner.load_model("llama-3-8b"),
            planner.load_machine("polaris"),
            planner.Workload(),
            planner.load_framework("megatron-lm"),
        ),
    }
