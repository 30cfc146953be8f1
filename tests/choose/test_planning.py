"""Plan and estimate: from names to answers, and through JSON and back."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

import planner
from planner.choose.jobs.job_spec import frameworks_for
from planner.choose.plan import Plan
from planner.choose.planning import estimate, estimate_job, estimate_jobs, job_of_layout, plan
from planner.cost.scenario.experience import Experience
from planner.describe.catalogue import load_machine, load_model
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.errors import DescriptionError, LayoutError, PlannerError

SMALL = Workload(sequence_length=1024, global_batch=64)


@pytest.fixture(scope="module")
def answer() -> Plan:
    return plan("gpt2-xl", "polaris", nodes=4, workload=SMALL.replaced(tokens=1e9))


def test_json_round_trip(answer: Plan) -> None:
    text = answer.to_json()
    assert Plan.from_json(text) == answer
    assert Plan.from_json(text).to_json() == text


def test_json_keys_that_others_read(answer: Plan) -> None:
    data = json.loads(answer.to_json())
    assert data["fits"] is True
    best = data["best"]
    assert {
        "dp",
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "zero_stage",
        "micro_batch",
        "grad_accumulation",
        "recompute",
        "schedule",
        "offload",
    } <= set(best["layout"])
    assert {
        "step_time_s",
        "step_time_parts_s",
        "tokens_per_s",
        "mfu",
        "memory_bytes",
        "host_memory_bytes",
        "framework",
        "worst_stage",
    } <= set(best)
    assert "total" in best["memory_bytes"]
    assert data["ranked"][0] == best
    assert {"name", "fits", "why", "fix"} <= set(data["strategies"][0])
    assert set(data["dropped"][0]) == {"reason", "count"}


def test_figures_agree_with_each_other(answer: Plan) -> None:
    assert answer.num_devices == 16
    for found in answer.ranked:
        tokens = 64 * 1024
        assert found.tokens_per_s == pytest.approx(tokens / found.step_time_s)
        assert 0 < found.mfu < 1
        assert found.memory_bytes["total"] <= 42412802048
        assert found.layout.global_batch == 64
        assert found.layout.world == 16
    assert answer.best is not None
    assert answer.duration_s(answer.best) == pytest.approx(1e9 / answer.best.tokens_per_s)
    hours = 4 * answer.duration_s(answer.best) / 3600
    assert answer.node_hours(answer.best) == pytest.approx(hours)
    counted = sum(d.count for d in answer.dropped if "exceeded" in d.reason)
    assert answer.num_candidates > counted


def test_ranked_is_sorted_over_all_frameworks(answer: Plan) -> None:
    times = [round(found.step_time_s, 9) for found in answer.ranked]
    assert times == sorted(times)


def test_mfu_is_model_operations_over_peak() -> None:
    # 6 N + 12 l h s per token over 312 TFLOP/s of 4 devices (nanoGPT's estimate_mfu)
    found = estimate(
        "gpt2",
        "polaris",
        planner.Layout(dp=4, micro_batch=16),
        framework="ddp",
        workload=Workload(sequence_length=1024, global_batch=64),
    )
    per_token = 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert found.mfu == pytest.approx(found.tokens_per_s * per_token / (4 * 312e12), rel=2e-3)


def test_top_limits_the_ranking() -> None:
    job = {"nodes": 1, "workload": SMALL, "frameworks": ("deepspeed", "fsdp2")}
    three = plan("gpt2", "polaris", **job, top=3)  # type: ignore[arg-type]
    more = plan("gpt2", "polaris", **job, top=30)  # type: ignore[arg-type]
    assert len(three.ranked) == 3
    assert more.ranked[:3] == three.ranked


def test_one_framework_may_be_named_alone() -> None:
    named = plan("gpt2", "polaris", nodes=1, workload=SMALL, frameworks="ddp", top=3)
    assert named == plan("gpt2", "polaris", nodes=1, workload=SMALL, frameworks=["ddp"], top=3)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400"])
def test_a_plan_with_a_number_that_is_not_finite_is_refused(answer: Plan, number: str) -> None:
    data = {**answer.as_dict(), "device_memory_bytes": "X"}
    with pytest.raises(DescriptionError, match=r"not JSON compliant.*; give the output"):
        Plan.from_json(json.dumps(data).replace('"X"', number))


def test_a_plan_with_an_amount_that_is_no_number_is_refused(answer: Plan) -> None:
    data = json.loads(answer.to_json())
    data["training"]["parts"][0]["time_s"]["low"] = [1.0]
    with pytest.raises(DescriptionError, match="not a plan: unsupported operand"):
        Plan.from_json(json.dumps(data))


def test_a_layout_of_another_type_is_refused() -> None:
    layout: Any = {"dp": 4}
    with pytest.raises(LayoutError, match=r"^layout = \{'dp': 4\} is not a layout; write for ex"):
        planner.estimate("gpt2", "polaris", layout)


def test_a_framework_of_another_type_is_refused() -> None:
    number: Any = 3
    with pytest.raises(DescriptionError, match="framework = 3 is not a name; give the name"):
        plan("gpt2", "polaris", nodes=1, workload=SMALL, frameworks=number)


def test_nothing_fits_is_a_result() -> None:
    answer = plan("llama-3.1-405b", "vsc-5", nodes=1, workload=Workload(global_batch=64))
    assert (answer.fits, answer.best, answer.ranked) == (False, None, ())
    assert all(not verdict.fits for verdict in answer.strategies)
    assert Plan.from_json(answer.to_json()) == answer


@pytest.mark.slow
def test_only_frameworks_that_run_on_the_device() -> None:
    aurora = plan("gpt2", "aurora", nodes=1, workload=SMALL.replaced(global_batch=48))
    used = {verdict.estimate.framework for verdict in aurora.strategies if verdict.estimate}
    assert "megatron-lm" not in used
    assert plan(
        "gpt2",
        "aurora",
        nodes=1,
        workload=SMALL.replaced(global_batch=48),
        frameworks=["megatron-deepspeed"],
    ).fits
    polaris = plan("gpt2", "polaris", nodes=1, workload=SMALL)
    used = {verdict.estimate.framework for verdict in polaris.strategies if verdict.estimate}
    names = {framework.name for framework in frameworks_for((), load_machine("polaris"))}
    assert used <= names
    assert "megatron-lm" in names
    assert "megatron-deepspeed" not in names
    with pytest.raises(LayoutError, match="does not run on xpu"):
        plan("gpt2", "aurora", nodes=1, workload=SMALL, frameworks=["megatron-lm"])


@pytest.mark.slow
def test_more_nodes_are_never_slower() -> None:
    times = []
    for nodes in (1, 2, 4, 8):
        best = plan(
            "llama-3-8b",
            "polaris",
            nodes=nodes,
            workload=Workload(sequence_length=4096, global_batch=128),
            frameworks=("fsdp2", "megatron-lm"),
        ).best
        assert best is not None
        times.append(best.step_time_s)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("nodes", "message"), [(0, "at least 1"), (-1, "at least 1"), (561, "560 nodes")]
)
def test_impossible_nodes(nodes: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        plan("gpt2", "polaris", nodes=nodes, workload=SMALL)


def test_precision_that_the_device_lacks() -> None:
    with pytest.raises(PlannerError, match="'fp8' is not supported by NVIDIA A100"):
        plan("gpt2", "polaris", nodes=1, workload=SMALL.replaced(precision="fp8"))


def test_samples_of_a_convolutional_model_are_no_sequences() -> None:
    with pytest.raises(LayoutError, match="use sequence_length = 1, its default"):
        plan("resnet-50", "polaris", nodes=1, workload=SMALL)
    found = plan("resnet-50", "polaris", nodes=1).recommended
    assert found is not None
    assert found.layout.world == found.layout.dp == 4


def test_estimate_takes_the_first_framework_that_allows_the_layout() -> None:
    found = estimate("llama-3-8b", "polaris", planner.Layout(dp=4, tp=4, zero_stage=1))
    assert found.framework == "megatron-lm"
    assert found.layout.world == 16
    with pytest.raises(LayoutError, match="tp = 3"):
        estimate("llama-3-8b", "polaris", planner.Layout(tp=3))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"recompute_layers": 4}, "recompute_layers = 4 with recompute none"),
        ({"recompute": "full", "recompute_span": 5}, "recompute_span = 5 does not divide"),
        ({"recompute_modules": ("mlp",)}, "recompute_modules = mlp with recompute none"),
        ({"recompute": "full", "recompute_layers": 4, "recompute_span": 4}, "one at a time"),
    ],
)
def test_an_estimate_says_what_the_nearest_framework_refuses(
    fields: dict[str, Any], said: str
) -> None:
    """ZeRO stage 1 is refused by FSDP2 too, of which nothing was said."""
    with pytest.raises(LayoutError) as caught:
        estimate("llama-3-8b", "dgx-h100", planner.Layout(dp=8, zero_stage=1, **fields))
    assert said in str(caught.value)
    assert not any(word in str(caught.value) for word in ("ZeRO", "fsdp2", "deepep"))


def test_estimate_equals_the_plan_s_row() -> None:
    answer = plan("gpt2-xl", "polaris", nodes=4, workload=SMALL)
    assert answer.best is not None
    found = estimate(
        "gpt2-xl", "polaris", answer.best.layout, workload=SMALL, framework=answer.best.framework
    )
    assert found == answer.best


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "null", '{"model": 1}', "[" * 100_000, "nan", "9" * 5000, '{"recommended": ""'
     ', "training": {"parts": [], "bill": 1, "notes": []}}'],
)  # fmt: skip
def test_text_that_is_no_plan(text: str) -> None:
    with pytest.raises(DescriptionError, match="not a plan") as refused:
        Plan.from_json(text)
    assert len(str(refused.value)) < 300


def test_a_long_field_does_not_flood_the_refusal() -> None:
    stated = json.loads(plan("gpt2", "polaris", nodes=1, workload=SMALL).to_json())
    stated["recommended"]["netw" + "(" * 3000] = 1
    with pytest.raises(DescriptionError, match=r"not a plan: .*\.\.\.; give") as refused:
        Plan.from_json(json.dumps(stated))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "name",
    [
        "bert-large",
        "vit-h-14",
        "gemma-2-27b",
        "opt-66b",
        pytest.param("deepseek-v3", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_transformer_is_planned(name: str) -> None:
    sequence = 257 if name == "vit-h-14" else 512
    answer = plan(
        name, "selene", nodes=64, workload=Workload(sequence_length=sequence, global_batch=512)
    )
    assert answer.fits
    assert answer.best is not None
    assert math.isfinite(answer.best.step_time_s)
    assert answer.best.mfu < 0.8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": "4"}, "nodes = '4' is not a whole number"),
        ({"nodes": 2.5}, r"nodes = 2\.5 is not a whole number"),
        ({"nodes": True}, "nodes = True is not a whole number"),
        ({"nodes": 1, "workload": {"global_batch": 8}}, r"is not a planner\.Workload"),
        ({"nodes": 1, "workload": SMALL, "top": [3]}, r"top = \[3\] is not a whole number"),
        ({"nodes": 1, "workload": SMALL, "top": 0}, "top = 0 must be at least 1"),
    ],
)
def test_arguments_of_another_kind_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        planner.plan("gpt2", "polaris", **given)


@pytest.mark.parametrize("framework", [None, "fsdp2"])
def test_layouts_of_many_jobs_are_estimated_as_each_alone(framework: str | None) -> None:
    """Nodes, batches and layouts differ; megatron-lm takes the pipeline, nobody takes tp = 3."""
    stages = [Layout(dp=4, pp=2, schedule="1f1b", grad_accumulation=n) for n in (2, 8)]
    layouts = [*stages, Layout(tp=3), Layout(dp=4, micro_batch=2)]
    layouts += [Layout(dp=n, zero_stage=z) for n in (1, 4, 8, 16) for z in (0, 1, 2, 3)]
    # jobs of the same objects are estimated together
    model, machine = load_model("gpt2-xl"), load_machine("polaris")
    jobs = [
        (job_of_layout(model, machine, layout, job, framework, Experience()), layout)
        for layout in layouts
        for job in (SMALL.replaced(global_batch=layout.global_batch), SMALL)
    ]
    refused = 0
    for (job, layout), found in zip(jobs, estimate_jobs(jobs), strict=True):
        if isinstance(found, LayoutError):
            refused += 1
            with pytest.raises(LayoutError, match=re.escape(str(found))):
                estimate_job(job, layout)
        else:
            assert found == estimate_job(job, layout)
    assert len(layouts) <= refused < len(jobs) - 5
