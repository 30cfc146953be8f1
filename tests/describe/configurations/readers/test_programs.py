"""Files of GPT-NeoX and axolotl, and of programs that are not read."""

from __future__ import annotations

import pytest

from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_machine, load_model
from planner.describe.configurations.reading import read_configuration_text
from planner.errors import PlannerError

NEOX = """{
  "pipe-parallel-size": 4, "model-parallel-size": 2, "num-layers": 44, "hidden-size": 6144,
  "num-attention-heads": 64, "seq-length": 2048, "checkpoint-activations": true,
  "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 32,
  "zero_optimization": {"stage": 1}, "fp16": {"fp16": true, "enabled": true},
  "optimizer": {"type": "Adam", "params": {"lr": 1e-4}}, "train-iters": 150000
}"""
AXOLOTL = """
base_model: org/model
load_in_4bit: true
adapter: qlora
lora_r: 32
lora_target_modules: 'model.layers.[\\d]+.(mlp|self_attn).(up|q)_proj'
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: paged_adamw_8bit
bf16: true
gradient_checkpointing: true
fsdp_config:
  reshard_after_forward: true
  fsdp_version: 2
  offload_params: true
"""


def test_gpt_neox_states_its_degrees() -> None:
    read = read_configuration_text(NEOX, "20B.yml")
    stated = {**read.layout, **read.workload, "framework": read.framework}
    wanted = {"pp": 4, "tp": 2, "zero_stage": 1, "micro_batch": 4, "grad_accumulation": 32}
    wanted |= {"recompute": "full", "sequence_length": 2048, "precision": "fp16"}
    wanted |= {"framework": "megatron-deepspeed", "attention": "eager"}
    assert {key: stated[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("words", "degrees"),
    [('"pipe-parallel-size": 4, ', (2, 1)), ('"model-parallel-size": 2, ', (1, 4))],
)
def test_gpt_neox_without_a_degree_has_one_rank(words: str, degrees: tuple[int, int]) -> None:
    read = read_configuration_text(NEOX.replace(words, ""), "20B.yml")
    assert (read.layout.get("tp", 1), read.layout.get("pp", 1)) == degrees


def test_axolotl_states_adapters_batch_and_sharding() -> None:
    read = read_configuration_text(AXOLOTL, "qlora.yml")
    stated = {**read.layout, **read.workload, "framework": read.framework}
    wanted = {"micro_batch": 2, "grad_accumulation": 4, "sequence_length": 4096}
    wanted |= {"lora_rank": 32, "lora_targets": ("query", "up"), "base_format": "nf4-double"}
    wanted |= {"zero_stage": 3, "offload": "all-cpu", "recompute": "full", "precision": "bf16"}
    wanted |= {"optimizer": "paged-adam-8bit", "framework": "accelerate"}
    assert {key: stated[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("lines", "dp"),
    [
        ("dp_shard_size: 4\n", 4),
        ("dp_replicate_size: 2\n", 2),
        ("dp_shard_size: 4\ndp_replicate_size: 2\n", 8),
        ("tensor_parallel_size: 2\n", None),
    ],
)
def test_degrees_of_axolotl_multiply(lines: str, dp: int | None) -> None:
    plain = "\n".join(line for line in AXOLOTL.splitlines() if "deepspeed" not in line)
    read = read_configuration_text(f"{plain}\n{lines}", "a.yml")
    assert read.layout.get("dp") == dp


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AXOLOTL + "rl: dpo\n", "rl = dpo is not estimated"),
        (AXOLOTL + "my_parallel_size: 4\n", "my_parallel_size = 4 may change layout"),
        (AXOLOTL.replace("version: 2", "unknown_shard: 2"), "unknown_shard = 2 may change"),
        (NEOX.replace('"num-l', '"moe_num_experts": 8, "num-l'), "moe_num_experts = 8"),
        ("train_loader: {a: 1}\nmax_duration: 1ep\nfsdp_config: {}", "looks like llm-foundry's"),
        ("model: {_component_: a}\noptimizer: {_component_: b}", "looks like torchtune's"),
        ("model: {type: llama}\ntrainer: {mp: 'p=f32,c=bfloat16'}", "looks like Levanter's"),
    ],
)
def test_what_is_not_known_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(PlannerError, match=words):
        read_configuration_text(text, "a.yml")


def test_a_long_key_does_not_flood_the_refusal() -> None:
    text = NEOX.replace('"num-l', f'"{"my" * 3000}_parallel_size": 4, "num-l')
    with pytest.raises(PlannerError, match="may change layout") as caught:
        read_configuration_text(text, "20B.yml")
    assert len(str(caught.value)) < 400


def test_a_dictionary_as_a_key_is_no_python() -> None:
    with pytest.raises(PlannerError, match="is not a supported configuration file"):
        read_configuration_text("batch_size = 12\nx = {{1: 2}: 3}\n", "config.py")


def test_unknown_values_are_asked_for() -> None:
    read = read_configuration_text(AXOLOTL.replace("paged_adamw_8bit", "lomo"), "a.yml")
    job = load_model("llama-3-8b"), load_machine("polaris"), read
    with pytest.raises(PlannerError, match="optimizer = lomo is not known here; state optimizer"):
        complete_layout(*job, nodes=1)
    stated = complete_layout(*job, nodes=1, workload={"optimizer": "adamw"})
    assert stated.workload.optimizer == "adamw"


def test_comments_end_with_their_line() -> None:
    """A backslash behind a comment joins no line to it."""
    script = """PP=2
# --no-load-optim \\
ARGS="--num-layers 24 --hidden-size 8 --seq-length 16 --micro-batch-size 1 \\
  --global-batch-size $BATCH"
torchrun pretrain_gpt.py --pipeline-model-parallel-size $PP $ARGS
"""
    read = read_configuration_text(script, "job.sh")
    assert read.layout["pp"] == 2
    assert "$BATCH" in read.unclear["global_batch"]
