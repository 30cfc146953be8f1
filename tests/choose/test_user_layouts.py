"""Completing: what follows from files and options, what is asked for, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.choose.user_layouts import CompletedLayout, complete_layout, estimate_configuration
from planner.cost.scenario import Scenario
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import load_machine, load_model
from planner.describe.configurations.configuration import Configuration, joined
from planner.describe.configurations.reading import read_configuration_text
from planner.errors import PlannerError

MODEL, MACHINE = load_model("llama-3-8b"), load_machine("polaris")  # 4 devices a node
SIZES = '"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, '
PASSES = '"gradient_accumulation_steps": 4, '


def _deepspeed(sizes: str, zero: str = '"stage": 2') -> Configuration:
    text = f'{{{sizes} "bf16": {{"enabled": true}}, "zero_optimization": {{{zero}}}}}'
    return read_configuration_text(text, "ds.json")


def _completed(configuration: Configuration, **options: Any) -> CompletedLayout:
    return complete_layout(MODEL, MACHINE, configuration, **options)


def test_passes_follow_from_the_nodes() -> None:
    layout = _completed(_deepspeed(SIZES), nodes=2).layout
    assert (layout.dp, layout.micro_batch, layout.grad_accumulation) == (8, 2, 4)


def test_the_ranks_follow_from_the_batch() -> None:
    assert _completed(_deepspeed(SIZES + PASSES)).layout.dp == 8


def test_the_micro_batch_follows_from_passes() -> None:
    found = _completed(_deepspeed('"train_batch_size": 64, ' + PASSES), nodes=2)
    assert (found.layout.micro_batch, found.workload.global_batch) == (2, 64)


def test_deepspeed_takes_one_pass_where_one_size_stands_alone() -> None:
    layout = _completed(_deepspeed('"train_batch_size": 64, '), nodes=2).layout
    assert (layout.micro_batch, layout.grad_accumulation) == (8, 1)


@pytest.mark.parametrize(
    ("sizes", "options", "words"),
    [
        (SIZES + PASSES, {"nodes": 1}, r"64 is not micro-batch 2 \* passes 4 \* dp 4; change "
         "the nodes to get dp = 8, or change the global batch"),
        (SIZES, {"nodes": 3}, r"64 is not a multiple of micro-batch 2 \* dp 12; change the nodes "
         "to get a dp that divides 32"),
        (SIZES, {}, "ds.json does not state the number of ranks; give the nodes"),
        ('"train_batch_size": "auto",', {"nodes": 1}, "the micro-batch; give it"),
        (SIZES, {"nodes": 0}, "nodes = 0"),
    ],
)  # fmt: skip
def test_what_is_missing_or_contradicts_is_said(
    sizes: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PlannerError, match=words):
        _completed(_deepspeed(sizes), **options)


def test_no_degree_of_zero() -> None:
    text = "--num-layers=12\n--micro-batch-size=1\n--context-parallel-size=0\n--nnodes=2\n"
    files = read_configuration_text(f"{text}--nproc-per-node=4", "m.args")
    with pytest.raises(PlannerError, match="cp = 0 is refused"):
        _completed(files)


def test_options_count_before_files_and_say_so() -> None:
    files = _deepspeed(SIZES + PASSES)
    found = _completed(files, nodes=2, layout={"micro_batch": 8, "zero_stage": 3})
    assert (found.layout.micro_batch, found.layout.grad_accumulation) == (8, 1)
    assert found.layout.zero_stage == 3
    assert "zero_stage = 3 (your option) overrides 2 in ds.json" in found.notes
    larger = _completed(files, nodes=4, workload={"global_batch": 128})
    assert (larger.layout.dp, larger.layout.grad_accumulation) == (16, 4)


def test_processes_must_fill_the_nodes() -> None:
    files = read_configuration_text("distributed_type: FSDP\nnum_processes: 8", "a.yaml")
    options = {"layout": {"micro_batch": 1}}
    assert _completed(files, nodes=2, **options).layout.dp == 8
    assert _completed(files, **options).layout.dp == 8
    with pytest.raises(PlannerError, match=r"starts 8 ranks, but 4 nodes of polaris hold 16"):
        _completed(files, nodes=4, **options)


def test_groups_of_hybrid_sharding() -> None:
    text = (
        "distributed_type: FSDP\nnum_processes: 16\n"
        "fsdp_config: {fsdp_sharding_strategy: HYBRID_SHARD}"
    )
    one_node_each = _completed(read_configuration_text(text, "a"), layout={"micro_batch": 1})
    assert one_node_each.layout.dp_shard == 4
    titan = (
        "[training]\nlocal_batch_size = 1\n"
        "[parallelism]\ndata_parallel_replicate_degree = 8\ndata_parallel_shard_degree = -1"
    )
    assert _completed(read_configuration_text(titan, "t"), nodes=4).layout.dp_shard == 2


def test_several_files_are_one_job() -> None:
    launch = read_configuration_text(
        "distributed_type: DEEPSPEED\nmixed_precision: 'no'\nnum_processes: 8\n"
        "deepspeed_config: {deepspeed_config_file: conf/ds.json}",
        "acc.yaml",
    )
    with pytest.raises(PlannerError, match=r"acc.yaml leaves zero_stage to conf/ds.json"):
        _completed(launch, layout={"micro_batch": 1})
    found = _completed(joined([launch, _deepspeed(SIZES)]))
    assert (found.layout.dp, found.layout.zero_stage) == (8, 2)
    assert found.workload.precision == "bf16"
    other = read_configuration_text("per_device_train_batch_size: 4", "args.yaml")
    with pytest.raises(PlannerError, match=r"micro_batch = 2 in ds.json but 4 in args.yaml"):
        joined([_deepspeed(SIZES), other])


def test_a_default_gives_way_to_what_another_file_states() -> None:
    launch = read_configuration_text(
        "distributed_type: FSDP\nmixed_precision: 'no'\nnum_processes: 8\n"
        "fsdp_config: {fsdp_activation_checkpointing: true}",
        "acc.yaml",
    )
    trainer = read_configuration_text("per_device_train_batch_size: 1\nbf16: true", "args.yaml")
    for files in ([launch, trainer], [trainer, launch]):
        found = _completed(joined(files))
        assert (found.layout.recompute, found.workload.precision) == ("full", "bf16")
        assert found.framework is not None
        assert found.framework.name == "accelerate"


def test_megatron_deepspeed_takes_the_file_of_deepspeed_along() -> None:
    arguments = read_configuration_text(
        "--num-layers=32\n--hidden-size=4096\n--seq-length=4096\n--micro-batch-size=2\n"
        "--global-batch-size=64\n--bf16\n--deepspeed\n--deepspeed_config=ds.json",
        "megatron.args",
    )
    files = _deepspeed(SIZES, '"stage": 1, "offload_optimizer": {"device": "cpu"}')
    for both in ([arguments, files], [files, arguments]):
        found = _completed(joined(both), nodes=2)
        assert found.framework is not None
        assert found.framework.name == "megatron-deepspeed"
        assert found.layout.offload == "optimizer-cpu"


@pytest.mark.parametrize(
    ("method", "layers"),
    [
        ("", [6] * 10 + [5, 5]),
        ("--pp-partition-method='type:transformer'", [6] * 10 + [5, 5]),
        # tr11-176B-ml.slurm: 70 layers and both ends are 72, six a stage
        ("--pp-partition-method='type:transformer|embedding'", [5, *[6] * 10, 5]),
    ],
)
def test_bloom_is_dealt_as_its_script_says(method: str, layers: list[int]) -> None:
    text = (
        "--deepspeed --zero-stage=1 --bf16 --num-layers=70 --hidden-size=14336 "
        "--num-attention-heads=112 --seq-length=2048 --micro-batch-size=2 "
        "--global-batch-size=2048 --tensor-model-parallel-size=4 "
        f"--pipeline-model-parallel-size=12 --checkpoint-activations {method}"
    )
    model, machine = load_model("bloom-176b"), load_machine("jean-zay-a100")
    found = complete_layout(
        model, machine, read_configuration_text(text.replace(" ", "\n"), "run.args"), nodes=48
    )
    assert found.framework is not None
    job = Scenario(model, machine, found.workload, found.framework)
    assert Stages.of_pipeline(job, found.layout).counts[1].tolist() == layers


def test_settings_of_the_file_reach_the_framework() -> None:
    zero = '"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": false'
    found = _completed(_deepspeed(SIZES, zero), nodes=2)
    assert found.framework is not None
    buffers = found.framework.buffers
    # the Trainer's own choice: the square of the width, 4096
    assert (buffers.reduce_bucket_elements, buffers.num_reduce_buckets) == (4096**2, 1)
    assert not found.framework.communication.overlap_gradients
    assert any("reduce_bucket_elements = 1.67772e+07, not 5e+08" in n for n in found.notes)


def test_another_model_than_the_files_is_said() -> None:
    text = "--num-layers=32\n--hidden-size=2048\n--seq-length=4096\n--micro-batch-size=1"
    notes = _completed(read_configuration_text(text, "m.args"), nodes=1).notes
    assert any("hidden_size = 2048 not 4096" in note for note in notes)


def test_a_better_layout_of_the_same_framework_is_found() -> None:
    config = _deepspeed('"train_batch_size": 32, "train_micro_batch_size_per_gpu": 1, ')
    found = estimate_configuration(
        "llama-3.2-1b", "polaris", config, nodes=1, workload={"sequence_length": 2048}
    )
    assert found.better is not None
    assert found.better.framework == "deepspeed+no-overlap"  # its own default without ZeRO-3
    assert found.better.step_time_s < found.estimate.step_time_s
    assert found.better.layout.global_batch == 32


@pytest.mark.parametrize(
    ("engine", "said", "once"),
    [
        ('"fsdp": "full_shard"', "", True),
        ('"fsdp": "full_shard"', '{"sync_each_batch": true}', False),
        ('"fsdp": ""', "", None),
        ('"deepspeed": {"zero_optimization": {"stage": 2}}', "", None),
    ],
)
def test_passes_of_the_trainer_that_reduce(engine: str, said: str, once: bool | None) -> None:
    # Accelerate sums whole gradients unless it is told; DDP and DeepSpeed have no such choice
    more = f', "accelerator_config": {{"gradient_accumulation_kwargs": {said}}}' if said else ""
    sizes = '"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "bf16": true'
    text = f"{{{sizes}, {engine}{more}}}"
    files = read_configuration_text(text, "trainer.json")
    found = _completed(files, nodes=1, workload={"sequence_length": 2048})
    assert found.framework.communication.reduces_once is once


def test_a_v_has_two_chunks_unless_more_are_stated() -> None:
    stated = {"pp": 4, "tp": 4, "schedule": "zero-bubble-v", "grad_accumulation": 8}
    found = complete_layout(MODEL, MACHINE, nodes=8, layout=stated, framework="fsdp2").layout
    assert (found.schedule, found.vpp) == ("zero-bubble-v", 2)
    found = complete_layout(
        MODEL, MACHINE, nodes=8, layout={**stated, "vpp": 3}, framework="fsdp2"
    ).layout
    assert found.vpp == 3  # refused by the rules, not mended


def test_files_turn_switches_on_by_their_words_and_by_what_they_set() -> None:
    zero = '"stage": 1, "overlap_comm": false, "reduce_bucket_size": 5e7, '
    zero += '"allgather_bucket_size": 5e7'
    found = _completed(_deepspeed(SIZES, zero), nodes=2)
    assert found.framework is not None
    assert found.framework.name == "deepspeed+bucket=50000000+no-overlap"
    assert any(
        "turns on no-overlap: gradients are reduced bucket by bucket" in n for n in found.notes
    )
    text = "--num-layers=32\n--hidden-size=4096\n--seq-length=4096\n--micro-batch-size=1\n"
    text += "--tensor-model-parallel-size=4\n--tp-comm-overlap\n--cross-entropy-fusion-impl=te\n"
    found = _completed(read_configuration_text(text, "m.args"), nodes=2)
    assert found.framework is not None
    switched = ("tp-comm-overlap", "loss-fusion-te", "no-overlap-grad-reduce")
    assert found.framework.switched == switched


def test_a_switch_that_the_framework_lacks_is_said() -> None:
    text = "--num-layers=32\n--hidden-size=4096\n--seq-length=4096\n--micro-batch-size=1\n"
    asked = replace(read_configuration_text(text, "m.args"), switches=("liger",))
    notes = _completed(asked, nodes=1).notes
    assert "liger of m.args is ignored: megatron-lm has no such switch" in notes


def test_a_switch_for_another_precision_is_said_and_left_out() -> None:
    """Megatron-LM asks for the recipe of 8-bit products alone where --fp8-format is given."""
    text = "--num-layers=32\n--hidden-size=4096\n--seq-length=4096\n--micro-batch-size=1\n"
    text += "--bf16\n--fp8-recipe=blockwise\n"
    found = _completed(read_configuration_text(text, "m.args"), nodes=1)
    assert found.framework is not None
    assert "fp8-blockwise" not in found.framework.switched
    said = "fp8-blockwise of m.args is ignored: it is for precision fp8, not bf16"
    assert said in found.notes
