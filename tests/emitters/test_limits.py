"""Limits: what a framework's own code cannot build or say is refused, whatever the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import planner
from planner.choose.search import search
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.configurations.reading import read_configuration_text
from planner.describe.layout import Layout
from planner.emitters import emit
from planner.emitters.limits import ExpressibleLayouts, FrameworkNames
from planner.emitters.registry import NO_FILES, recipes
from planner.errors import EmitError
from tests.descriptions import scenario
from tests.emitters.emitted import files_of, plan_of


def test_a_window_that_a_fork_cannot_say_is_refused() -> None:
    case = ("mistral-7b", "aurora", 1, Layout(dp=12, zero_stage=1))
    assert "megatron.args" in files_of(*case, "megatron-deepspeed", sequence_length=4096)
    with pytest.raises(EmitError, match="a window of 4096 tokens in 32 layers"):
        files_of(*case, "megatron-deepspeed", sequence_length=8192)
    case = ("mistral-7b", "polaris", 3, Layout(dp=12, zero_stage=1))
    args = files_of(*case, "megatron-lm", sequence_length=8192)["megatron.args"]
    assert "--window-size=4095,0\n" in args
    args = files_of(*case, "megatron-lm", sequence_length=4096)["megatron.args"]
    assert "--window-size" not in args


def test_words_name_what_can_be_used() -> None:
    with pytest.raises(
        EmitError, match=r"^the files of ours cannot express schedule x; use a, b or c$"
    ):
        FrameworkNames("schedule", "ours", {"a": 1, "b": 2, "c": 3})["x"]


LOST: dict[str, dict[str, Any]] = {
    "tp = 2": {"dp": 1, "tp": 2},
    "pp = 2": {"dp": 1, "pp": 2, "schedule": "1f1b"},
    "cp = 2": {"dp": 1, "cp": 2},
    "recompute selective": {"dp": 2, "recompute": "selective"},
    "recompute_layers = 2": {"dp": 2, "recompute": "full", "recompute_layers": 2},
    "recompute_every = 2": {"dp": 2, "recompute": "full", "recompute_every": 2},
    "recompute_modules = mlp": {"dp": 2, "recompute": "full", "recompute_modules": ("mlp",)},
    "offload_activations": {"dp": 2, "offload_activations": True},
    "offload all-cpu": {"dp": 2, "zero_stage": 3, "offload": "all-cpu"},
    "dp_shard = 1": {"dp": 2, "dp_shard": 1, "zero_stage": 3},
    "tiles = 2": {"dp": 2, "zero_stage": 3, "tiles": 2},
}


@pytest.mark.parametrize("what", LOST)
def test_what_would_be_lost_is_refused(what: str) -> None:
    with pytest.raises(EmitError, match=f"^the files of ours cannot express {what}; use"):
        ExpressibleLayouts().check(Layout(**LOST[what]), "ours")


def test_a_description_cannot_claim_what_its_recipe_has_no_words_for() -> None:
    """A pipeline through DeepSpeed's configuration would vanish without a word."""
    layout = Layout(dp=2, pp=2, schedule="1f1b", grad_accumulation=4)
    mine = load_framework("deepspeed").replaced(name="mine", axes=("pp",), schedules=("1f1b",))
    model, machine = load_model("gpt2"), load_machine("polaris")
    workload = planner.Workload(sequence_length=1024, global_batch=8)
    found = planner.estimate(model, machine, layout, workload=workload, framework=mine)
    with pytest.raises(EmitError, match="the files of mine cannot express pp = 2; use pp = 1"):
        emit(plan_of("gpt2", "polaris", 1, workload), found, framework=mine)


@pytest.mark.parametrize("name", names("framework"))
def test_recipes_have_words_for_what_frameworks_claim(name: str) -> None:
    """What is searched by default is what can be written."""
    framework = load_framework(name)
    if framework.configuration == NO_FILES:
        pytest.skip("described for comparison only")
    expressible = recipes()[framework.configuration].EXPRESSIBLE
    assert set(framework.recompute) <= set(expressible.recompute)
    told = framework.code.recompute_by
    assert set(framework.recompute_by if told is None else told) <= set(expressible.recompute_by)
    assert not framework.recompute_modules or expressible.modules
    assert not framework.offload_activations or expressible.activations
    assert not framework.hybrid_stages or expressible.hybrid
    assert not framework.tiling or expressible.tiles
    assert not framework.custom_pipeline_split or expressible.stages
    code = framework.code.models or (None,)
    for built in code:
        axes = framework.axes if built is None or built.axes is None else built.axes
        assert set(axes) <= set(expressible.axes)
    places = {f"optimizer-{place}" for place in framework.offload_optimizer}
    places |= {f"all-{place}" for place in framework.offload_parameters}
    assert places <= set(expressible.offload)


def test_what_shards_over_one_rank_is_refused() -> None:
    """Accelerate's plugin refuses it at the start; the estimate needs no plugin."""
    layout = Layout(tp=4, zero_stage=3, sequence_parallel=False)
    with pytest.raises(EmitError, match="only with sharded states"):
        files_of("gpt2", "polaris", 1, layout, "accelerate")


@pytest.mark.parametrize(
    "layout",
    [
        Layout(dp=4, cp=2),
        Layout(dp=8, ep=4),
        Layout(dp=8, dp_shard=2, ep=4, zero_stage=3),
    ],
    ids=str,
)
def test_torchtitan_shards_over_context_and_experts(layout: Layout) -> None:
    """States are sharded over cp as over dp, and experts live among the ranks that share."""
    with pytest.raises(EmitError, match="supports cp, ep only with sharded states"):
        files_of("qwen3-30b-a3b", "perlmutter", 2, layout, "fsdp2")


@pytest.mark.slow
def test_torchtitan_is_asked_only_for_what_it_can_hold() -> None:
    """The search keeps to the same, with smaller groups too."""
    asked = scenario("qwen3-30b-a3b", "fsdp2", "perlmutter")
    part = asked.framework.limit_to_files(asked.model, asked.workload)
    found = list(search(replace(asked, framework=part), 16).footprints.layouts)
    assert any(x.ep > 1 and x.dp_shard not in (0, x.dp) for x in found)
    for x in found:
        group = (x.dp_shard or x.dp) * x.cp * x.tp
        assert x.zero_stage or x.cp * x.ep == 1, str(x)
        assert group % x.ep == 0, str(x)


def test_models_that_no_code_builds_are_refused_in_one_sentence() -> None:
    with pytest.raises(EmitError, match=r"'olmo-2-7b': its code builds no model that .* \(full\)"):
        files_of("olmo-2-7b", "polaris", 1, Layout(dp=4, zero_stage=1), "megatron-lm")
    # around other models FSDP2 shards, and nothing else
    with pytest.raises(EmitError, match=r"gpt2|learned positions"):
        files_of("gpt2", "polaris", 1, Layout(dp=2, tp=2, zero_stage=3), "fsdp2")
    assert "sharding.py" in files_of("gpt2", "polaris", 1, Layout(dp=4, zero_stage=3), "fsdp2")


def test_megatron_is_told_how_experts_lie_and_what_they_take() -> None:
    layout = Layout(dp=4, tp=4, ep=8, etp=1, sequence_parallel=True, zero_stage=1)
    for etp, word in ((1, "1"), (0, "4")):
        ep = 8 if etp else 4
        capacity = {"expert_capacity": 1.25, "pad_experts": True}
        files = files_of(
            "mixtral-8x7b",
            "perlmutter",
            4,
            layout.replaced(etp=etp, ep=ep),
            "megatron-lm",
            **capacity,
        )
        told = files["megatron.args"].split()
        assert f"--expert-tensor-parallel-size={word}" in told
        assert {"--moe-expert-capacity-factor=1.25", "--moe-pad-expert-input-to-capacity"} <= {
            *told
        }
        read = read_configuration_text(files["megatron.args"], "megatron.args")
        assert read.layout.get("etp", 0) == etp
        assert {name: read.workload[name] for name in capacity} == capacity
    alone = Layout(dp=16, zero_stage=3)
    with pytest.raises(EmitError, match=r"its files cannot set expert_capacity 1\.25; use 0"):
        files_of("qwen3-30b-a3b", "perlmutter", 4, alone, "fsdp2", expert_capacity=1.25)


# --- documents ---------------------------------------------------------------------------------

DOCUMENTS = {"document_lengths": (300, 900), "sequence_length": 4096}


def test_megatron_and_torchtitan_keep_documents_apart() -> None:
    """Megatron-LM's own mask of documents is one that Transformer Engine does not read."""
    case = ("llama-3-8b", "perlmutter", 1)
    files = files_of(*case, Layout(dp=1, tp=4, zero_stage=1), "megatron-lm", **DOCUMENTS)
    args = files["megatron.args"].split()
    assert "--dataloader-inter-document-masking" in args
    assert not any(word.startswith("--reset-") for word in args)
    assert "mock data has documents of 1 to 4,095 tokens" in files["README.md"]
    read = read_configuration_text(files["megatron.args"], "megatron.args")
    assert any("; set --document-lengths" in note for note in read.notes)
    files = files_of(*case, Layout(dp=4, zero_stage=3), "fsdp2", **DOCUMENTS)
    assert "as always in torchtitan 0.3.0" in files["README.md"]
    assert "torchtitan.toml" not in files, "0.2.2 lets documents attend to each other"
    whole = files_of(*case, Layout(dp=4, zero_stage=3), "fsdp2", sequence_length=4096)
    assert "torchtitan.toml" in whole
    assert "--document-lengths" not in whole["README.md"]


@pytest.mark.parametrize(
    ("model", "framework", "changes", "why"),
    [
        ("llama-3-8b", "megatron-lm", {"packing": "padded"}, "packing = padded"),
        ("llama-3-8b", "megatron-lm", {"attention": "eager"}, "with attention eager"),
        ("llama-3-8b", "nanotron", {}, "attend to each other"),
        ("llama-3-8b", "megatron-deepspeed", {}, "attend to each other"),
        ("llama-3-8b", "torchtitan", {"packing": "padded"}, "packing = padded"),
        ("gpt2", "ezpz", {"sequence_length": 1024}, "document_lengths"),
    ],
)
def test_documents_that_a_program_would_mix_are_refused(
    model: str, framework: str, changes: dict[str, Any], why: str
) -> None:
    layout = Layout(dp=4, zero_stage={"torchtitan": 3, "ezpz": 0}.get(framework, 1))
    with pytest.raises(EmitError, match=why):
        files_of(model, "polaris", 1, layout, framework, **{**DOCUMENTS, **changes})


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed", "ddp", "horovod", "fsdp2"])
def test_a_program_of_ones_own_is_told_what_documents_do(framework: str) -> None:
    layout = Layout(dp=4, zero_stage=max(load_framework(framework).zero_stages))
    for packing, said in (("packed", "each attends only to itself"), ("padded", "pads every one")):
        files = files_of(
            "gpt2", "polaris", 1, layout, framework, document_lengths=(300, 900), packing=packing
        )
        assert said in files["README.md"]
        assert "600 tokens on average" in files["README.md"]
        assert "nanogpt.args" not in files
    if framework == "fsdp2":  # torchtitan's own data is packed, and shards nothing else
        files = files_of(
            "llama-3-8b", "polaris", 1, layout, framework, **DOCUMENTS, packing="padded"
        )
        assert "sharding.py" in files
        assert "torchtitan_plan.py" not in files
