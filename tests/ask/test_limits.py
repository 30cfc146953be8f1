"""Limits: the largest model, sequence and batch, against plans and estimates one by one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import planner
from planner import Layout, Workload, ask
from planner.ask.limits.batch_sizes import nearby_batches
from planner.ask.limits.largest_jobs import families
from planner.choose.preferences import preferences
from planner.errors import LayoutError, UnknownNameError
from tests.ask.jobs import SHORT, small_machine

RISK = preferences().risk


def sensible(answer: planner.ask.Answer | planner.Plan, most_tp: int) -> bool:
    one = answer.recommended  # type: ignore[union-attr]
    return (
        one is not None
        and one.out_of_memory_probability <= RISK
        and one.layout.offload == "none"
        and one.layout.tp <= most_tp
        and one.layout.pp <= 16
    )


# --- models -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_largest_model_is_that_of_all_plans() -> None:
    machine = small_machine()
    answer = ask.model("gpt2", machine, nodes=1, workload=SHORT)
    sizes = {}
    for one in families()["gpt2"]:
        plan = planner.plan(one, machine, nodes=1, workload=SHORT)
        if sensible(plan, 2):
            sizes[one.num_params] = one.name
    assert answer.verdict.startswith(f"{sizes[max(sizes)]} (")
    assert [row["num_params"] for row in answer.rows] == sorted(
        (one.num_params for one in families()["gpt2"]), reverse=True
    )


def test_days_leave_smaller_models() -> None:
    job = SHORT.replaced(tokens=3e9)
    answer = ask.model("gpt2", "polaris", workload=job, days=0.4)
    able = [row for row in answer.rows if row["days"] <= 0.4]
    assert 0 < len(able) < len(answer.rows)
    assert answer.verdict.startswith(f"{able[0]['model']} (")


def test_models_may_be_named() -> None:
    answer = ask.model("gpt2", "polaris", workload=SHORT, among=("gpt2-xl", "gpt2", "gpt2"))
    assert [row["model"] for row in answer.rows] == ["gpt2-xl", "gpt2"]
    other = ask.model("gpt2", "polaris", workload=SHORT, family="bert")
    assert [row["model"] for row in other.rows] == ["bert-large"]


def test_ones_own_model_is_of_its_family(tmp_path: Path) -> None:
    text = Path("models/gpt2-xl.toml").read_text().replace("num_layers = 48", "num_layers = 52")
    path = tmp_path / "longer.toml"
    path.write_text(text)
    answer = ask.model(str(path), "polaris", workload=SHORT)
    assert [row["model"] for row in answer.rows][:2] == ["longer", "gpt2-xl"]


def test_unknown_families_and_what_is_no_transformer() -> None:
    with pytest.raises(UnknownNameError, match="unknown family 'lama': did you mean llama"):
        ask.model("gpt2", "polaris", family="lama", workload=SHORT)
    answer = ask.model("gpt2", "polaris", family="cnn", workload=SHORT)
    assert not answer.found
    assert "trains on samples" in answer.rows[0]["reason"]


# --- sequences --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_longest_sequence_fits_and_a_longer_does_not() -> None:
    job, machine = Workload(sequence_length=4096, global_batch=8), small_machine()
    answer = ask.sequence("llama-3.2-3b", machine, workload=job)
    longest = answer.asked["longest"]
    assert longest["safe"] >= longest["sensible"] >= 4096
    for length, fits in ((longest["safe"], True), (int(1.1 * longest["safe"]), False)):
        plan = planner.plan(
            "llama-3.2-3b", machine, nodes=1, workload=job.replaced(sequence_length=length)
        )
        one = plan.recommended
        assert (one is not None and one.out_of_memory_probability <= RISK) == fits


@pytest.mark.slow
def test_more_nodes_hold_longer_sequences() -> None:
    job = Workload(sequence_length=4096, global_batch=8)
    lengths = [
        ask.sequence("llama-3.2-3b", "vsc-5", nodes=n, workload=job).asked["longest"]["safe"]
        for n in (1, 2)
    ]
    assert lengths[0] < lengths[1]


def test_a_table_of_positions_is_a_limit() -> None:
    answer = ask.sequence("gpt2", "polaris", workload=SHORT)
    assert answer.asked["longest"] == {"safe": 1024, "sensible": 1024}
    assert any("learned positions" in row["reason"] for row in answer.rows)


def test_a_grain_beyond_a_table_of_positions_is_refused() -> None:
    job = SHORT.replaced(sequence_length=512)
    with pytest.raises(LayoutError, match="grain = 1000000 exceeds the 1024 learned positions"):
        ask.sequence("gpt2", "polaris", grain=1_000_000, workload=job)
    assert (
        ask.sequence("gpt2", "polaris", grain=1024, workload=job).asked["longest"]["safe"] == 1024
    )


def test_pictures_have_no_longest_sequence() -> None:
    with pytest.raises(LayoutError, match="resnet-50 trains on samples of one size"):
        ask.sequence("resnet-50", "polaris", workload=Workload(sequence_length=1, global_batch=64))


def test_a_coarse_grain_is_no_limit_of_the_job() -> None:
    """Lengths between what is asked for and the grain fit, but are none of its multiples."""
    answer = ask.sequence("llama-3.2-1b", "polaris", grain=1_000_000, workload=SHORT)
    assert answer.asked["longest"]["safe"] == 1024
    assert "the 1,024 tokens of the workload, and with no multiple of 1,000,000" in answer.verdict
    assert "the longest sequence" not in answer.verdict
    none = ask.sequence("llama-3.1-405b", "polaris", workload=SHORT)
    assert "No multiple of 1,024 tokens is a safe sequence" in none.verdict


# --- batches ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_best_batch_is_near_and_about_the_fastest() -> None:
    job = SHORT.replaced(global_batch=250)
    answer = ask.batch("gpt2-xl", "polaris", nodes=3, workload=job, within=1.1)
    rates = {}
    for size in nearby_batches(250, 12, 1.1):
        sized = job.replaced(global_batch=size)
        plan = planner.plan("gpt2-xl", "polaris", nodes=3, workload=sized, exact=True)
        assert plan.recommended is not None
        rates[size] = plan.recommended.tokens_per_s
    rows = {row["global_batch"]: row for row in answer.rows}
    for size, rate in rates.items():
        assert rows[size]["tokens_per_s_per_device"] == pytest.approx(rate / 12)
        assert rows[size]["gain"] == pytest.approx(rate / rates[250] - 1)
    fast = [size for size, rate in rates.items() if rate >= max(rates.values()) / 1.05]
    assert answer.asked["best"] == min(fast, key=lambda size: (abs(size - 250), size))


@pytest.mark.parametrize(("size", "ranks", "within"), [(512, 12, 1.25), (7, 64, 4.0), (100, 1, 1)])
def test_near_batches_are_near_and_shared(size: int, ranks: int, within: float) -> None:
    found = nearby_batches(size, ranks, within)
    assert size in found
    assert len(found) <= 12
    assert all(size / within <= other <= size * within for other in found)
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("size", "ranks", "within", "sizes"),
    [
        # multiples of 16 and of 8; those of 4 would be fourteen
        (64, 16, 1.5, [48, 56, 64, 72, 80, 88, 96]),
        # an odd number of ranks is not halved
        (60, 9, 1.25, [54, 60, 63, 72]),
        # the twelve that are nearest, the lower of two, where even the ranks share more
        (100, 2, 1.5, [88, 90, 92, 94, 96, 98, 100, 102, 104, 106, 108, 110]),
        (100, 2, 1.1, [92, 94, 96, 98, 100, 102, 104, 106, 108, 110]),
        # multiples of 4; those of 2 would be fourteen
        (7, 64, 4.0, [4, 7, 8, 12, 16, 20, 24, 28]),
    ],
)
def test_near_batches_are_those_that_most_ranks_share(
    size: int, ranks: int, within: float, sizes: list[int]
) -> None:
    assert nearby_batches(size, ranks, within) == sizes


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"within = 0.5 must lie between 1 and 64"):
        ask.batch("gpt2", "polaris", workload=SHORT, within=0.5)


def test_one_more_than_the_largest_micro_batch_is_not_safe() -> None:
    answer = ask.largest_batch("gpt2-xl", "vsc-5", workload=SHORT, frameworks="deepspeed")
    for row in answer.rows:
        layout = next(
            layout
            for stage in range(4)
            if str(
                layout := Layout(
                    dp=2,
                    zero_stage=stage,
                    micro_batch=row["micro_batch"],
                    recompute=row["recompute"],
                )
            )
            == row["layout"]
        )
        more = layout.replaced(micro_batch=row["micro_batch"] + 1)
        risks = [
            planner.estimate("gpt2-xl", "vsc-5", each, framework="deepspeed", workload=job)
            for each in (layout, more)
            for job in [SHORT.replaced(global_batch=each.global_batch)]
        ]
        assert risks[0].out_of_memory_probability <= RISK < risks[1].out_of_memory_probability


def test_the_next_larger_model_says_what_it_takes() -> None:
    answer = ask.model("llama-3-8b", "polaris", nodes=2, among=("llama-2-70b", "llama-3-8b"))
    assert answer.verdict.startswith(
        "llama-3-8b (8.03 B parameters) is the largest of the 2 models"
    )
    assert re.search(r"The next, llama-2-70b, fits, but: .*offload [\w-]+\.$", answer.verdict)


@pytest.mark.slow
def test_a_longer_sequence_that_was_seen_is_not_passed_over() -> None:
    """Sequences that one would run may stop and go on: 12 on a node of Aurora did."""
    job = Workload(sequence_length=4096, global_batch=12)
    answer = ask.sequence("llama-3-8b", "aurora", workload=job)
    longest = answer.asked["longest"]
    rows = {row["sequence_length"]: row for row in answer.rows}
    for length, row in rows.items():
        if row["fits"] and row["out_of_memory_probability"] <= RISK:
            assert length <= longest["safe"]
            odd = any(word in row["reason"] for word in ("offload", "leaves", "cuts", "stages"))
            assert odd or length <= longest["sensible"]
    assert "()" not in answer.verdict
