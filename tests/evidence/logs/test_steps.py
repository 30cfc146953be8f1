"""Steps of logs: their durations, their warm-up and their summary, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from planner.evidence.logs.diagnosis import Explanation
from planner.evidence.logs.scalars import is_table
from planner.evidence.logs.steps import LogError, Source, durations, steady, step_of, summary

NAN = math.nan


@pytest.mark.parametrize(
    ("times", "dropped"),
    [
        ([], 0),
        ([9.0], 0),
        ([9.0, 1.0], 1),
        ([1.5, 1.0], 0),
        ([1.6, 1.0], 1),
        # fewer than five steps lose outliers only, others the first step as well
        ([1.0] * 4, 0),
        ([1.0] * 5, 1),
        ([9.0, 1.0, 1.0], 1),
        ([9.0, 9.0, 1.0, 1.0, 1.0, 1.0], 2),
        ([9.0, 9.0, 9.0, 1.0, 1.0, 1.0], 3),
        # half of all at most, though they differ from what follows
        ([9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0], 3),
        # an outlier is 5 % from the median of the later half, or four deviations where these vary
        ([9.0, 1.06, 1.0, 1.0, 1.0], 2),
        ([9.0, 1.04, 1.0, 1.0, 1.0], 1),
        ([9.0, 0.94, 1.0, 1.0, 1.0], 2),
        # deviation 0.1 x 1.4826, so 0.59 either way
        ([9.0, 1.58, 1.0, 0.9, 1.1, 1.1, 0.9], 1),
        ([9.0, 1.62, 1.0, 0.9, 1.1, 1.1, 0.9, 1.0], 2),
    ],
)
def test_warm_up(times: list[float], dropped: int) -> None:
    assert steady(np.array(times)) == dropped


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([{"time_s": 2.0, "tokens_per_s": 4.0, "phases_s": 1.0}], [2.0]),
        ([{"tokens_per_s": 4.0, "phases_s": 1.0}], [0.25]),
        ([{"tokens_per_s": 0.0}, {"tokens_per_s": 5.0}], [NAN, 0.2]),
        ([{"tokens_per_s": -4.0, "samples_per_s": 2.0}], [0.5]),
        ([{"tokens_per_s_per_device": 10.0, "tokens_per_s": 4.0}], [0.1]),
        ([{"phases_s": 3.0}, {"time_s": 0.0}], [3.0, NAN]),
        ([{"time_s": math.inf}, {"time_s": -1.0}, {"time_s": 1.0}], [NAN, NAN, 1.0]),
        ([{"loss": 1.0}], [NAN]),
    ],
)
def test_the_most_direct_measure_gives_durations(
    steps: list[dict[str, float]], expected: list[float]
) -> None:
    np.testing.assert_allclose(durations(steps), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("figures", "time_s"),
    [
        ({"time_s": 3.0, "steps_per_s": 4.0}, 3.0),
        ({"steps_per_s": 4.0}, 0.25),
        ({"steps_per_s": 0.0}, None),
        # 24 passes until step 3: eight of 0.5 s each
        ({"pass_time_s": 0.5, "passes": 24.0, "step": 3.0}, 4.0),
        ({"pass_time_s": 0.5, "step": 1.0}, 0.5),
        ({"pass_time_s": 0.5, "passes": 24.0, "step": 0.0}, None),
        ({"pass_time_s": 0.5, "passes": 24.0}, None),
        ({"time_s": 3.0, "pass_time_s": 0.5, "step": 1.0}, 3.0),
        ({"passes": 24.0, "step": 3.0}, None),
    ],
)
def test_the_time_of_a_step_from_its_figures(
    figures: dict[str, float], time_s: float | None
) -> None:
    assert step_of(figures).get("time_s") == time_s


def test_phases_are_summed_where_all_three_are_stated() -> None:
    phases = {"forward_s": 1.0, "backward_s": 2.0, "optimizer_s": 4.0}
    assert step_of(phases)["phases_s"] == 7.0
    assert math.isnan(step_of({"forward_s": 1.0, "backward_s": 2.0})["phases_s"])


def _summary(*times: float, **more: Any) -> Any:
    steps = [step_of({"time_s": time, "step": 5.0 + i, **more}) for i, time in enumerate(times)]
    return summary(Source("csv", "CSV"), steps, {}, "a.csv")


def test_a_summary_counts_what_it_drops() -> None:
    log = _summary(9.0, 1.0, 1.0, 1.5, 1.6, 1.0, 0.0, 1.0, 1.0)
    assert (log.num_steps, log.num_warmup, log.num_slow, len(log.steps)) == (8, 1, 1, 7)
    assert log.median("time_s") == 1.0
    assert log.notes == ("1 step lines without a finite time were left out",)
    unknown = _summary(9.0, 1.0, NAN, 1.0, 1.0, 1.0)
    assert unknown.notes == (
        "1 step lines without a finite time were left out",
        "only 4 steady steps: the spread is uncertain",
    )


def test_phases_of_a_log_are_medians_without_the_first() -> None:
    rows = [(9.0, 9.0, 9.0), (1.0, 2.0, 0.5), (2.0, 4.0, 0.5), (3.0, 3.0, 0.5)]
    names = ("forward_s", "backward_s", "optimizer_s")
    steps = [step_of(dict(zip(names, row, strict=True))) for row in rows]
    facts = summary(Source("deepspeed", "DeepSpeed"), steps, {"world": 8.0}, "log").facts
    assert {name: facts[name] for name in names} == {
        "forward_s": 2.0,
        "backward_s": 3.0,
        "optimizer_s": 0.5,
    }
    assert facts["world"] == 8.0


@pytest.mark.parametrize("step", [0.0, 1.0])
def test_the_first_iteration_alone_is_no_run(step: float) -> None:
    source = Source("csv", "CSV")
    with pytest.raises(LogError, match="only the first iteration"):
        summary(source, [step_of({"time_s": 1.0, "step": step})], {}, "a.csv")
    assert summary(source, [step_of({"time_s": 1.0, "step": 2.0})], {}, "a.csv").num_steps == 1


def test_a_loss_that_stops_being_finite_is_noted() -> None:
    def notes(*losses: float) -> bool:
        steps = [step_of({"time_s": 1.0, "loss": loss}) for loss in losses]
        said = summary(Source("csv", "CSV"), steps, {}, "a.csv").notes
        return any("the loss is not finite" in note for note in said)

    assert notes(*[2.0] * 6, NAN)
    assert not notes(*[2.0] * 7)
    assert not notes(*[NAN] * 7)  # no loss is logged


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step,time\n1,2.5\n", True),
        ("\ufeffstep;time\n\n1;2.5\n", True),
        ("step\ttime\n1\t2.5\n", True),
        ('{"step": 1}\n{"step": 2}\n', True),
        ("step,time\n", False),  # no row
        ("step,time\n1,2,3\n", False),  # of another width
        ("step,time\nred,blue\n", False),  # without a number
        ("step\n1\n", False),  # one column
        ("[step],time\n1,2\n", False),
        ("{step, time\n1,2\n", False),
    ],
)
def test_texts_that_are_tables(text: str, expected: bool) -> None:
    assert is_table(text) is expected


def test_a_run_is_inside_if_time_and_memory_are() -> None:
    from planner import Layout

    inside, outside = (1.0, True), (1.0, False)
    for gaps, expected in (
        ((inside, inside), True),
        ((inside, outside), False),
        ((outside, inside), False),
        ((outside,), False),
    ):
        assert Explanation("", Layout(), gaps=gaps).inside is expected
