"""Strict numerics for every test, and one home for the descriptions that many tests use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# examples are drawn the same way on every machine, and slow machines are no failure
settings.register_profile(
    "planner",
    deadline=None,
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("planner")


@pytest.fixture(autouse=True)
def strict_numerics() -> Iterator[None]:
    """A division by zero, an overflow or a NaN in a formula is an error."""
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        yield
