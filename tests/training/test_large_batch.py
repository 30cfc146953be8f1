"""Large batches: published rates, warm-up and what was reached."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.describe.catalogue import load_model
from planner.training.large_batch import (
    LINEAR,
    SQUARE_ROOT,
    more_samples,
    published,
    scaled_rate,
    warm_up_steps,
)

BATCHES = st.integers(1, 10**7)


def test_goyal() -> None:
    """Goyal et al. 2017, arXiv:1706.02677, sections 2.1 and 5.1: 0.1 for 256, 3.2 for 8,192."""
    assert scaled_rate(0.1, 256, 8192) == pytest.approx(3.2)
    assert scaled_rate(0.1, 256, 256) == 0.1
    # five epochs of 1,281,167 images
    assert warm_up_steps(1_281_167, 5, 8192) == pytest.approx(5 * 1_281_167 / 8192, abs=1)


def test_square_root() -> None:
    """You et al. 2019, arXiv:1904.00962: 64 times the batch, 8 times the rate."""
    assert scaled_rate(1.0, 512, 32768, SQUARE_ROOT) == pytest.approx(8)


@given(BATCHES, BATCHES, BATCHES)
def test_rules_compose(a: int, b: int, c: int) -> None:
    for power in (LINEAR, SQUARE_ROOT):
        once = scaled_rate(1e-3, a, c, power)
        assert once == pytest.approx(scaled_rate(scaled_rate(1e-3, a, b, power), b, c, power))


@given(BATCHES, st.floats(1, 1e7))
def test_steps_and_samples_trade(batch: int, critical: float) -> None:
    """McCandlish et al. 2018, arXiv:1812.06162, equation 2.11: (S/S_min - 1) (E/E_min - 1) = 1."""
    samples = float(more_samples(batch, critical))
    # S = E / B, and S_min = E_min / critical
    steps = samples * critical / batch
    assert (samples - 1) * (steps - 1) == pytest.approx(1)


def test_arrays_and_scalars_agree() -> None:
    sizes = np.array([256, 512, 8192])
    assert scaled_rate(0.1, 256, sizes).tolist() == [
        float(scaled_rate(0.1, 256, size)) for size in sizes
    ]
    assert warm_up_steps(1000, 0, sizes).tolist() == [1, 1, 1]


def test_what_is_published_is_of_models_here_and_sourced() -> None:
    found = published()
    assert [(one.model, one.batch) for one in found] == sorted(
        ((one.model, one.batch) for one in found), key=lambda pair: (pair[0] != "resnet-50", pair)
    )
    for one in found:
        assert load_model(one.model).num_params > 0
        assert "arXiv:" in one.source
