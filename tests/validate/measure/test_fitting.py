"""Fits: they give back what they were made of, and nothing negative."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("torch", exc_type=ImportError)

from planner.validate.measure.collective_times import (
    alpha_beta,
    relative_least_squares,
)


def test_fits_recover_what_they_were_made_of() -> None:
    sizes = [4096.0 * 8**k for k in range(5)]
    times = [1e-4 + size / 2e9 for size in sizes]
    fit = alpha_beta(sizes, times)
    assert fit.alpha_s == pytest.approx(1e-4)
    assert fit.bytes_per_s == pytest.approx(2e9)
    assert fit.mape < 1e-9


def test_a_fit_gives_no_negative_rate() -> None:
    # free, the slope would be -1; at zero the constant that is left solves sum (c/t - 1)/t = 0
    coefficients, mape = relative_least_squares([[1, 1], [1, 2], [1, 3]], [3.0, 2.0, 1.0])
    constant = (1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1)
    assert coefficients == pytest.approx([constant, 0.0])
    errors = [abs(constant / time - 1) for time in (3, 2, 1)]
    assert mape == pytest.approx(sum(errors) / 3)
    assert alpha_beta([1, 2, 3], [3.0, 2.0, 1.0]).bytes_per_s == math.inf


def test_a_fit_of_columns_many_decades_apart() -> None:
    made = np.array([2e-5, 3e-13, 5e-10])
    columns = np.array([[1, 1e9, 1e3], [1, 1e11, 1e6], [1, 4e8, 3e7], [1, 7e10, 2e4]])
    coefficients, mape = relative_least_squares(columns, columns @ made)
    assert coefficients == pytest.approx(made, rel=1e-6)
    assert mape < 1e-9
