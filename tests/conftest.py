"""Strict numerics for every test, examples that never change, tests that run alone."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# no test asks the network for a model; those of the hub have one of their own
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# nor does the developer's own file of preferences change an answer
os.environ["PLANNER_PREFERENCES"] = ""

# examples are drawn the same way on every machine, and slow machines are no failure
settings.register_profile(
    "planner",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("planner")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What runs alone is slow, too."""
    for item in items:
        if item.get_closest_marker("alone"):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def strict_numerics() -> Iterator[None]:
    """A division by zero, an overflow or a NaN in a formula is an error."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        yield
