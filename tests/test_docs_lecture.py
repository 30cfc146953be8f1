"""The lecture's code: it trains as one process does, and the kept record is that of its tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lecture import CLASSES, FOLDER, KEPT, RANKS, TOLERANCE, recorded

pytest.importorskip("torch", reason="no torch: the lecture's code needs it")
pytestmark = [pytest.mark.slow, pytest.mark.alone]

FP32_BYTES = 4
PARAMS = 4 * 64 * 256


@pytest.fixture(scope="module")
def runs() -> tuple[dict[str, Any], dict[str, float]]:
    """The four strategies on four ranks."""
    return recorded()


@pytest.mark.parametrize("name", CLASSES)
def test_every_strategy_trains_as_one_process(runs: Any, name: str) -> None:
    assert runs[1][name] <= TOLERANCE


@pytest.mark.parametrize("name", CLASSES)
def test_the_page_shows_what_ranks_hold_and_send(runs: Any, name: str) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert kept[name] == json.loads(json.dumps(runs[0][name]))


def test_states_are_those_of_the_zero_paper(runs: Any) -> None:
    """Rajbhandari et al. 2020, section 3.1, in fp32: weights and Adam's two states, / ranks."""
    held = {name: _held(calls[0]) for name, calls in runs[0].items()}
    assert held["ddp"] == [3 * FP32_BYTES * PARAMS] * RANKS
    for name in ("zero3", "tensor_parallel", "pipeline"):
        assert held[name] == [3 * FP32_BYTES * PARAMS // RANKS] * RANKS


def test_traffic_is_that_of_the_zero_paper(runs: Any) -> None:
    """Rajbhandari et al. 2020, section 7: DP sends 2, ZeRO-3 3 times the model, for many ranks."""
    model = FP32_BYTES * PARAMS * (RANKS - 1) / RANKS
    sent = {name: _sent(calls) for name, calls in runs[0].items()}
    assert sent["ddp"] == 2 * model
    assert sent["zero3"] == 3 * model


def test_every_method_has_a_sentence_for_the_page() -> None:
    for file in (*CLASSES, "shared"):
        text = (FOLDER / f"{file}.py").read_text(encoding="utf-8")
        assert text.count("    def ") - text.count("__init__") <= text.count('        """')


def _held(call: dict[str, Any]) -> list[int]:
    return [sum(piece[7] for piece in rank["held"]) for rank in call["ranks"]]


def _sent(calls: list[dict[str, Any]]) -> int:
    """What rank 1 sends in a step."""
    return sum(sent[3] for call in calls for sent in call["ranks"][1]["sent"])
