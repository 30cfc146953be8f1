"""Docstring contract: formulas state unit, counted, left out, source, and have a known value."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.docstrings import formulas, incomplete, lacks, unknown_units


def half_s(whole: float) -> float:
    """Half of a time [s].

    Counted: all of it. Left out: nothing. Definition.

    >>> half_s(3.0)
    1.5
    """
    return whole / 2


def bare(whole: float) -> NDArray[np.float64]:
    """Half of it [GiB]; see method.md#no-such-section.

    >>> half = bare(3.0)
    """
    return np.asarray(whole / 2)


def test_every_formula_keeps_the_contract() -> None:
    assert not incomplete(), "complete these docstrings as CONTRIBUTING.md says"


@pytest.mark.parametrize("name", formulas())
def test_units_are_those_of_the_nomenclature(name: str) -> None:
    assert not unknown_units(formulas()[name])


def test_formulas_return_numbers() -> None:
    names = set(formulas())
    numbers = {"collectives.ring_exchange_s", "states.expert_share"}
    held = {"weights.resident", "block_pass.block_passes", "feed_forward.dense"}
    assert numbers | held <= names
    looked_up = {
        "constants.step_constants",
        "parts.part",
        "bubble.schedule_by_name",
        "prior.memory_class",
    }
    others = {
        "wiring.links",
        "wiring.build_graph",
        "schedule.order_1f1b",
        "layers_per_stage.interleaved",
    }
    assert not (looked_up | others | {"layers_per_stage.interleaved"}) & names


def test_the_rules_can_tell() -> None:
    assert lacks(half_s) == set()
    assert lacks(bare) == {"unit", "counted", "left_out", "source", "known_value"}
    assert unknown_units(bare) == {"GiB"}
    assert unknown_units(half_s) == set()
