"""Test setup: strict numerics, deterministic examples, markers of long tests and lone ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# no test loads a model from the network; hub tests use a local hub
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# the developer's own preferences and settings must not change an answer
os.environ["PLANNER_PREFERENCES"] = ""
os.environ["PLANNER_SETTINGS"] = ""
# nor the width of the terminal
os.environ.pop("COLUMNS", None)

# examples are the same on every machine, and a slow machine does not fail a test
settings.register_profile(
    "planner",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("planner")


LONG, SLOW = (
    tuple(Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines())
    for name in ("long.txt", "slow.txt")
)
"""First parts of the names of tests that `make long` runs, and of those that take a second."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of long.txt and slow.txt; what is long, or runs alone, is slow, too."""
    for item in items:
        if item.nodeid.startswith(LONG):
            item.add_marker("long")
        if item.nodeid.startswith(SLOW) or any(map(item.get_closest_marker, ("alone", "long"))):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def strict_numerics() -> Iterator[None]:
    """Make a division by zero, an overflow or a NaN in a formula an error."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        yield
