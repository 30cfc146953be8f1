"""Doctest names: objects that every doctest of the package may use without an import."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import planner
from tests.descriptions import default_scenario


@pytest.fixture(scope="session", autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    """Add loaders, description classes and `make_scenario` to doctests."""
    doctest_namespace |= {
        "planner": planner,
        "np": np,
        "Layout": planner.Layout,
        "Workload": planner.Workload,
        "load_framework": planner.load_framework,
        "load_machine": planner.load_machine,
        "load_model": planner.load_model,
        "make_scenario": default_scenario,
    }
