"""Readers: files as people write them, in the form of each software's own examples."""

from __future__ import annotations

import contextlib
import json
import random
import re
from typing import Any

import pytest

from planner.choose.user_layouts import complete_layout
from planner.describe.catalogue import load_machine, load_model
from planner.describe.configurations.configuration import WIDTH_SQUARED
from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.reading import READERS, read_configuration_text
from planner.describe.layout import STAGE_FIELDS
from planner.describe.workload import Workload, parse_ramp
from planner.errors import PlannerError

DEEPSPEED = """{
  // as the documentation shows it, with comments
  "train_batch_size": 64, "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto", "steps_per_print": 2000,
  "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3, "overlap_comm": true, "contiguous_gradients": true,
    "reduce_bucket_size": "auto", "sub_group_size": 1e9,
    "stage3_prefetch_bucket_size": "auto", "zero_hpz_partition_size": 8,
    "offload_optimizer": {"device": "cpu", "pin_memory": true},
    "offload_param": {"device": "cpu", "pin_memory": true},
  }, # a comma too many
}""".replace("// as", "# as")
FSDP1 = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_offload_params: false
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_use_orig_params: true
machine_rank: 0
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
FSDP2 = """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_offload_params: true
  fsdp_reshard_after_forward: false
  fsdp_version: 2
mixed_precision: 'no'
num_processes: 16
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 4
  parallelism_config_tp_size: 2
"""
PLUGIN = """
distributed_type: DEEPSPEED
deepspeed_config:
  gradient_accumulation_steps: 4
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero_stage: 3
mixed_precision: bf16
num_processes: 8
"""
MEGATRON_PLUGIN = """
distributed_type: MEGATRON_LM
megatron_lm_config:
  megatron_lm_num_micro_batches: 2
  megatron_lm_pp_degree: 2
  megatron_lm_recompute_activations: true
  megatron_lm_sequence_parallelism: true
  megatron_lm_tp_degree: 4
  megatron_lm_use_distributed_optimizer: true
mixed_precision: bf16
num_processes: 16
"""
TITAN = """
[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]
[optimizer]
name = "AdamW"
[training]
local_batch_size = 8
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
enable_async_tensor_parallel = true
[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
[compile]
enable = true
[quantize.linear.float8]
enable_fsdp_float8_all_gather = false
"""
TITAN_PYTHON = '''
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3.config_registry import llama3_8b

def mine():
    """An 8B."""
    config = llama3_8b()
    config.training.local_batch_size = 2
    config.training.global_batch_size = 64
    config.training.seq_len = 8192
    config.parallelism.data_parallel_shard_degree = 8
    config.parallelism.tensor_parallel_degree = 2
    config.activation_checkpoint = FullAC.Config()
    return config
'''
TITAN_RETURNED = """
def plan():
    model = model_registry("8B")
    return Trainer.Config(
        model_spec=model,
        compile=CompileConfig(enable=True),
        activation_checkpoint=SelectiveAC.Config(),
        training=TrainingConfig(local_batch_size=2, seq_len=8192, enable_cpu_offload=True),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=4, data_parallel_shard_degree=2
        ),
    )
"""
MEGATRON = """#!/bin/bash
#SBATCH --nodes=16
TP=8; PP=4                        # degrees
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NODES=16
LAYERS=80
if [ "$PP" -gt 1 ]; then
  VIRTUAL="--num-layers-per-virtual-pipeline-stage 5"
else
  VIRTUAL="--num-layers-per-virtual-pipeline-stage 1"
fi
MODEL_ARGS=(
    --num-layers $LAYERS --hidden-size 8192
    --num-attention-heads 64   # comments may stand here
    --seq-length 4096 --max-position-embeddings 4096
)
TRAIN_ARGS="--micro-batch-size 1 --global-batch-size $((NODES * 32)) --bf16 \\
    --fp8-format hybrid --recompute-granularity selective --lr 1e-4 --hidden-dropout 0"
cat <<EOT > unused.json
{"train_batch_size": 1}
EOT
[ -n "$DEBUG" ] && TRAIN_ARGS="$TRAIN_ARGS --micro-batch-size 7"
echo --tensor-model-parallel-size 99
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes "$NODES" pretrain_gpt.py \\
    ${MODEL_ARGS[@]} $TRAIN_ARGS $VIRTUAL \\
    --tensor-model-parallel-size=$TP --pipeline-model-parallel-size $PP --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --tp-comm-overlap > log.txt
"""
MEGATRON_DEEPSPEED = """
TP=2
options=" --tensor-model-parallel-size $TP --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --micro-batch-size 4 --global-batch-size $GBS --fp16 \\
  --optimizer adam"
ds_args="--deepspeed --deepspeed_config=configs/ds.json --zero-stage=1"
ds_args="${ds_args} --deepspeed-activation-checkpointing --checkpoint-activations"
run_cmd="deepspeed pretrain_gpt.py $options ${ds_args} &> log"
eval ${run_cmd}
"""
NANOTRON = """
general: {project: mine, run: first, seed: 42}
parallelism:
  dp: 4
  tp: 2
  pp: 2
  pp_engine: afab
  tp_mode: ALL_REDUCE
  tp_linear_async_communication: false
  recompute_layer: true
model:
  dtype: bfloat16
  model_config: {hidden_size: 2048, num_hidden_layers: 24, num_attention_heads: 16}
optimizer: {zero_stage: 1, optimizer_factory: {name: adamW}}
tokens: {sequence_length: 2048, micro_batch_size: 2, batch_accumulation_per_replica: 8}
"""
TRAINER = json.dumps(
    {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "bf16": True,
        "fp16": False,
        "optim": "adamw_bnb_8bit",
        "torch_compile": True,
        "fsdp": ["shard_grad_op", "auto_wrap", "offload"],
        "deepspeed": None,
        "learning_rate": 2e-5,
    }
)
FINETUNING = """
model_name_or_path: some/model
finetuning_type: lora
lora_rank: 16
lora_target: q_proj,v_proj
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
bf16: true
deepspeed: examples/deepspeed/ds_z3_config.json
"""
QUANTIZED = """
finetuning_type: lora
lora_rank: 64
lora_dropout: 0.05
use_dora: true
lora_target: all
quantization_bit: 4
quantization_method: bnb
per_device_train_batch_size: 1
"""
ADAPTER = json.dumps(
    {
        "peft_type": "LORA",
        "r": 32,
        "lora_alpha": 64,
        "lora_dropout": 0.1,
        "target_modules": ["q_proj", "v_proj"],
        "use_rslora": True,
        "use_dora": False,
        "base_model_name_or_path": "org/base",
    }
)
TRAINER_OPTIONS = """torchrun --nproc_per_node=8 run_clm.py --per_device_train_batch_size 2 \\
  --gradient_accumulation_steps 4 --fp16 --output_dir out"""
PIECES = """
def llama3_debugmodel() -> Trainer.Config:
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(num_chunks=4, loss_fn=CrossEntropyLoss.Config()),
        training=TrainingConfig(local_batch_size=8, seq_len=2048, steps=10),
        parallelism=ParallelismConfig(tensor_parallel_degree=2),
        activation_checkpoint=SelectiveAC.Config(),
    )
"""
WORDPLAY = """
GAS=4
ezpz launch python3 -m wordplay train=owt model.batch_size=3 model.n_layer=24 \\
    model.block_size=512 optimizer.gas=${GAS} train.dtype=float16 train.compile=false
"""
NANOGPT = """# a small GPT
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 5 * 8
n_layer = 12
n_head = 12
n_embd = 768
dropout = 0.0
"""

EXAMPLES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    # name: text, reader, what is read, words that a note must hold
    "deepspeed": (
        DEEPSPEED,
        "deepspeed",
        {
            "framework": "deepspeed",
            "global_batch": 64,
            "zero_stage": 3,
            "offload": "all-cpu",
            "precision": "bf16",
            "optimizer": "adamw",
            "buffers.reduce_bucket_elements": WIDTH_SQUARED,
            "reshard": 8,
        },
        (),
    ),
    "fsdp1": (
        FSDP1,
        "accelerate",
        {
            "framework": "accelerate",
            "zero_stage": 3,
            "precision": "bf16",
            "world": 16,
            "shards_per_node": True,
            "offload": "none",
        },
        ("FSDP 1 is estimated as FSDP 2",),
    ),
    "fsdp2": (
        FSDP2,
        "accelerate",
        {
            "zero_stage": 2,
            "recompute": "full",
            "offload": "all-cpu",
            "tp": 2,
            "dp": 8,
            "replicas": 2,
            "precision": "fp32",
        },
        (),
    ),
    "plugin": (
        PLUGIN,
        "accelerate",
        {"framework": "deepspeed", "zero_stage": 3, "grad_accumulation": 4, "offload": "none"},
        (),
    ),
    "megatron plugin": (
        MEGATRON_PLUGIN,
        "accelerate",
        {
            "framework": "megatron-lm",
            "tp": 4,
            "pp": 2,
            "sequence_parallel": True,
            "recompute": "selective",
            "zero_stage": 1,
        },
        (),
    ),
    "torchtitan": (
        TITAN,
        "torchtitan",
        {
            "framework": "fsdp2",
            "tp": 8,
            "pp": 4,
            "vpp": 2,
            "schedule": "interleaved-1f1b",
            "micro_batch": 2,
            "grad_accumulation": 4,
            "replicas": 2,
            # resharding is off by default with a pipeline
            "zero_stage": 2,
            "precision": "fp8",
            # whole layers, one in two
            "recompute": "full",
            "recompute_every": 2,
            "sequence_length": 8192,
        },
        (),
    ),
    "torchtitan 0.3": (
        TITAN_PYTHON,
        "torchtitan",
        {"tp": 2, "dp": 8, "zero_stage": 3, "recompute": "full", "global_batch": 64},
        (),
    ),
    "torchtitan 0.3, returned": (
        TITAN_RETURNED,
        "torchtitan",
        {"dp": 8, "replicas": 4, "micro_batch": 2, "recompute": "selective", "offload": "all-cpu"},
        (),
    ),
    "megatron": (
        MEGATRON,
        "megatron",
        {
            "framework": "megatron-lm",
            "tp": 8,
            "pp": 4,
            "vpp": 4,  # 80 layers in chunks of 5 on 4 stages
            "micro_batch": 1,
            "global_batch": 512,
            "sequence_parallel": True,
            "zero_stage": 1,
            "recompute": "selective",
            "precision": "fp8",
            "world": 128,
            "num_layers": 80,
            "communication.overlap_gradients": True,
            "communication.overlap_parameters": False,
        },
        (),
    ),
    "megatron-deepspeed": (
        MEGATRON_DEEPSPEED,
        "megatron",
        {
            "framework": "megatron-deepspeed",
            "tp": 2,
            "zero_stage": 1,
            "recompute": "full",
            "precision": "fp16",
            "attention": "eager",
            "micro_batch": 4,
            "dropout": 0.1,
        },
        (),
    ),
    "nanotron": (
        NANOTRON,
        "nanotron",
        {
            "framework": "nanotron",
            "dp": 4,
            "tp": 2,
            "pp": 2,
            "schedule": "gpipe",
            "sequence_parallel": False,
            "recompute": "full",
            "zero_stage": 1,
            "micro_batch": 2,
            "grad_accumulation": 8,
            "communication.overlap_tensor_backward": False,
        },
        ("ALL_REDUCE",),
    ),
    "trainer": (
        TRAINER,
        "huggingface",
        {
            "framework": "accelerate",
            "zero_stage": 2,
            "offload": "all-cpu",
            "micro_batch": 4,
            "recompute": "full",
            "optimizer": "adam-8bit",
        },
        (),
    ),
    "fine-tuning": (
        FINETUNING,
        "huggingface",
        {
            "framework": "deepspeed",
            "lora_rank": 16,
            "lora_targets": ("query", "value"),
            "recompute": "full",  # LLaMA-Factory's default
            "sequence_length": 2048,
        },
        (),
    ),
    "base in 4 bits": (
        QUANTIZED,
        "huggingface",
        {
            "lora_rank": 64,
            "lora_dropout": 0.05,
            "dora": True,
            "base_format": "nf4-double",  # LLaMA-Factory's default
            "recompute": "full",
        },
        (),
    ),
    "adapter": (
        ADAPTER,
        "huggingface",
        {"lora_rank": 32, "lora_dropout": 0.1, "lora_targets": ("query", "value"), "dora": False},
        (),
    ),
    "trainer options": (
        TRAINER_OPTIONS,
        "huggingface",
        {"usual_framework": "ddp", "micro_batch": 2, "grad_accumulation": 4, "precision": "fp16"},
        (),
    ),
    "nanogpt": (
        NANOGPT,
        "nanogpt",
        {"framework": "ddp", "micro_batch": 12, "global_batch": 480, "sequence_length": 1024},
        (),
    ),
    "a loss in pieces": (
        PIECES,
        "torchtitan",
        {"framework": "torchtitan", "kernels.loss_chunks": 4, "recompute": "selective"},
        (),
    ),
    "wordplay": (
        WORDPLAY,
        "wordplay",
        {"framework": "ezpz", "micro_batch": 3, "grad_accumulation": 4, "precision": "fp16"}
        | {"sequence_length": 512, "num_layers": 24, "zero_stage": 0},
        (),
    ),
    "wordplay by itself": (
        "python3 -m wordplay data=owt model.batch_size=1 train.backend=ddp",
        "wordplay",
        {"framework": "ezpz", "micro_batch": 1, "grad_accumulation": 1, "precision": "bf16"},
        (),
    ),
    "layout": (
        '{"layout": {"dp": 8, "tp": 2, "zero_stage": 1}, "framework": "megatron-lm"}',
        "planned",
        {"dp": 8, "tp": 2, "zero_stage": 1, "framework": "megatron-lm"},
        (),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_is_known_by_what_stands_in_it(name: str) -> None:
    document = Document("a.txt", EXAMPLES[name][0])
    found = [key for key, reader in READERS.items() if reader.recognises(document)]
    assert found == [EXAMPLES[name][1]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_file_is_read(name: str) -> None:
    text, _, wanted, notes = EXAMPLES[name]
    found = read_configuration_text(text, "a.txt")
    stated = {**found.usual, **found.layout, **found.workload, **found.changes, **found.shape}
    said = {key: stated.get(key, getattr(found, key, None)) for key in wanted}
    assert said == wanted
    for words in notes:
        assert any(words in note for note in found.notes), found.notes


@pytest.mark.parametrize(
    ("name", "switches"),
    [
        ("torchtitan", ("compile", "async-tp")),
        ("torchtitan 0.3, returned", ("compile",)),
        ("megatron", ("tp-comm-overlap",)),
        ("trainer", ("compile",)),
        ("nanogpt", ("compile",)),
        ("wordplay", ()),
        ("wordplay by itself", ("compile",)),
    ],
)
def test_switches_that_a_file_turns_on(name: str, switches: tuple[str, ...]) -> None:
    assert read_configuration_text(EXAMPLES[name][0], "a.txt").switches == switches


@pytest.mark.parametrize(
    ("lines", "stage"),
    [
        ("  fsdp_version: 1\n", 3),
        ("  fsdp_version: 2\n", 3),
        ("  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n", 3),
        ("  fsdp_version: 2\n  fsdp_reshard_after_forward: false\n", 2),
        ("  fsdp_sharding_strategy: SHARD_GRAD_OP\n", 2),
        ("  fsdp_sharding_strategy: NO_SHARD\n", 0),
    ],
)
def test_the_stage_of_accelerate_follows_its_plugin(lines: str, stage: int) -> None:
    text = f"distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n{lines}"
    assert read_configuration_text(text, "accelerate.yaml").layout["zero_stage"] == stage


@pytest.mark.parametrize(
    ("sizes", "stage"),
    [
        ({"dp_replicate": 8}, 0),
        ({"dp_replicate": 2, "dp_shard": 1, "tp": 4}, 0),
        ({"dp_replicate": 4, "dp_shard": 2}, 3),
        ({"dp_replicate": 4, "dp_shard": 1, "cp": 2}, 3),
        ({"dp_shard": 8}, 3),
        ({"tp": 8}, 3),
    ],
)
def test_a_mesh_of_replicas_alone_shards_nothing(sizes: dict[str, int], stage: int) -> None:
    lines = [f"  parallelism_config_{name}_size: {size}" for name, size in sizes.items()]
    head = "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n"
    text = "\n".join([f"{head}parallelism_config:", *lines, ""])
    assert read_configuration_text(text, "accelerate.yaml").layout["zero_stage"] == stage


def test_numbers_of_files_end_at_a_quadrillion() -> None:
    table = Table({"most": 10**15, "more": 10**15 + 1, "least": -(10**15)}, "a.json")
    assert (table.number("most"), table.number("least")) == (10**15, -(10**15))
    with pytest.raises(PlannerError, match="more = 1000000000000001"):
        table.number("more")


@pytest.mark.parametrize("size", [-1, 0, 4])
def test_groups_of_deepspeed_are_none_by_default(size: int) -> None:
    zero = f'{{"stage": 3, "zero_hpz_partition_size": 1, "mics_shard_size": {size}}}'
    text = f'{{"train_batch_size": 8, "zero_optimization": {zero}}}'
    if size > 1:
        with pytest.raises(PlannerError, match="mics_shard_size = 4 is not estimated"):
            read_configuration_text(text, "ds_config.json")
        return
    found = read_configuration_text(text, "ds_config.json")
    assert "reshard" not in found.layout
    shape = complete_layout(load_model("gpt2"), load_machine("polaris"), found, nodes=2).layout
    assert (shape.dp, shape.dp_shard) == (8, 0)


@pytest.mark.parametrize("key", ["packing", "neat_packing", "padding_free"])
def test_files_that_pack_documents_ask_for_their_lengths(key: str) -> None:
    """How long they are stands in the data alone."""
    text = f'{{"per_device_train_batch_size": 2, "bf16": true, "{key}": %s}}'
    (note,) = read_configuration_text(text % "true", "a.json").notes
    assert note.startswith(f"a.json: {key} is ignored")
    assert note.endswith("; set --document-lengths")
    assert not read_configuration_text(text % "false", "a.json").notes


def test_what_is_left_to_another_file_is_named() -> None:
    assert read_configuration_text(FINETUNING, "a").left_to["zero_stage"] == "ds_z3_config.json"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a supported configuration file"),
        ("just words", "is not a supported configuration file"),
        ("\x00\x01", "is not a supported configuration file"),
        ('{"train_batch_size": ', "is not valid JSON"),
        ('{"train_batch_size": "GB_SIZE"}', "train_batch_size = GB_SIZE is not a whole number"),
        ('{"train_batch_size": 1.5}', "is not a whole number"),
        ('{"train_batch_size": true}', "is not a whole number"),
        ('{"train_batch_size": ' + "9" * 5000 + "}", "is not valid JSON"),
        ('{"train_batch_size": 1e400}', "is not a whole number"),
        ('{"train_batch_size": 8, "zero_optimization": 3}', "is not a section"),
        ('{"train_batch_size": 8, "fp16": {"enabled": "maybe"}}', "is neither true nor false"),
        (
            '{"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}}',
            "both enabled",
        ),
        ('{"a": ' * 3000 + "1" + "}" * 3000, "is n"),
        ("fsdp_config: [1]\ndistributed_type: FSDP", "is not a section"),
        ("a: &a [1]\ndistributed_type: *a", "is not a supported configuration file"),
        ("distributed_type: TPU", "distributed_type = TPU is not supported"),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: 9}", "is not known"),
        (TITAN.replace("size = 8", "size = 7"), "not a multiple of pipeline_parallel_microbatch"),
        (MEGATRON.replace("stage 5", "stage 7"), "does not divide the 80 layers"),
        ('{"layout": {"dp": 0}}', "dp = 0 is refused"),
        ('{"layout": 3}', "must be objects"),
        ("per_device_train_batch_size: 4\nbf16: true\nfp16: true", "both true"),
        ("x" * 300_000, "characters; configurations above"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(PlannerError, match=words.replace("(", r"\(")) as caught:
        read_configuration_text(text, "a.txt")
    assert len(str(caught.value)) < 450


def test_a_script_that_doubles_a_variable_is_not_followed_without_end() -> None:
    text = "A=xxxxxxxxxx\n" + "A=$A$A$A\n" * 60 + "python t.py $A --num-layers 2 --seq-length 3"
    assert read_configuration_text(text, "a.sh").workload["sequence_length"] == 3


ODD = [
    "-1",
    "0",
    "1e9",
    "99999999999999999999",
    "null",
    "auto",
    "true",
    '"x"',
    "[]",
    "{}",
    "",
    "$X",
]


def _mutated(text: str, draw: random.Random) -> str:
    """The text with one number or word replaced, or a piece taken out, doubled or moved."""
    kind = draw.randrange(4)
    if kind:
        words = list(re.finditer(r"\w+", text))
        place = draw.choice(words)
        return text[: place.start()] + draw.choice(ODD) + text[place.end() :]
    start, end = sorted(draw.randrange(len(text)) for _ in range(2))
    return text[:start] + draw.choice(["", text[start:end] * 2, "\n"]) + text[end:]


@pytest.mark.parametrize("name", EXAMPLES)
def test_whatever_a_file_holds_is_read_or_refused(name: str) -> None:
    """Anything but a sentence fails: another error, or a value that no layout takes."""
    draw = random.Random(name)
    model, machine = load_model("gpt2"), load_machine("polaris")
    for _ in range(25):
        text = _mutated(EXAMPLES[name][0], draw)
        with contextlib.suppress(PlannerError):
            found = read_configuration_text(text, "a.txt")
            complete_layout(model, machine, found, nodes=draw.choice([None, 2]))


def test_what_python_would_warn_of_is_not_said(capfd: pytest.CaptureFixture[str]) -> None:
    from planner.describe.configurations.document import Document

    assert dict(Document("x.py", "a = 1\nb = 1or 2\n").tables)["a"] == 1
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            {"recompute": "full", "recompute_layers": 3, "recompute_span": 1},
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 4",
            {"recompute": "full", "recompute_layers": 0, "recompute_span": 4},
        ),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm --fp16",
            {"recompute": "selective", "recompute_modules": ("moe_act", "layernorm")},
        ),
        (
            "--recompute-granularity selective --recompute-modules core_attn",
            {"recompute": "selective", "recompute_modules": ()},
        ),
        ("--cpu-offloading-num-layers 31", {"recompute": "none", "offload_activations": True}),
        ("--cpu-offloading-num-layers 0", {"recompute": "none", "offload_activations": False}),
    ],
)
def test_what_megatron_recomputes_and_moves(options: str, said: dict[str, object]) -> None:
    text = MEGATRON_PLAIN.format(options=options)
    found = read_configuration_text(text, "job.sh")
    assert {name: found.layout[name] for name in said} == said
    assert not [note for note in found.notes if "recompute" in note or "activations" in note]


def test_switches_stand_beside_merged_passes() -> None:
    options = "--num-experts 8 --overlap-moe-expert-parallel-comm --grad-reduce-in-bf16"
    text = MEGATRON_PLAIN.format(options=f"{options} --tp-comm-overlap")
    found = read_configuration_text(text, "job.sh")
    assert found.framework == "megatron-lm"
    assert sorted(found.switches) == ["bf16-gradients", "overlap-experts", "tp-comm-overlap"]
    with_backend = text.replace("--num", "--moe-flex-dispatcher-backend deepep --num")
    found = read_configuration_text(with_backend, "job.sh")
    assert found.framework == "megatron-deepep"
    assert sorted(found.switches) == ["bf16-gradients", "tp-comm-overlap"]
    alone = read_configuration_text(
        with_backend.replace("--overlap-moe-expert-parallel-comm ", ""), "job.sh"
    )
    assert alone.framework == "megatron-lm"
    assert sorted(alone.switches) == ["bf16-gradients", "deepep", "tp-comm-overlap"]


@pytest.mark.parametrize(
    ("modules", "switch"),
    [
        ("--cuda-graph-modules moe_router moe_preprocess", "graphed-router"),
        # the name of the option in releases before core_v0.19.0
        ("--cuda-graph-scope attn moe_router moe_preprocess", "graphed-attention"),
        ("--cuda-graph-modules attn", "cuda-graphs"),
    ],
)
def test_graphs_of_the_modules_of_a_layer(modules: str, switch: str) -> None:
    options = f"--num-experts 8 --cuda-graph-impl transformer_engine {modules}"
    found = read_configuration_text(MEGATRON_PLAIN.format(options=options), "job.sh")
    assert found.switches == (switch,)
    as_layer = any(
        "all kernels of a layer are estimated as captured" in note for note in found.notes
    )
    assert as_layer == (switch == "cuda-graphs")


def test_layers_whose_activations_stay_are_said() -> None:
    text = MEGATRON_PLAIN.format(options="--cpu-offloading-num-layers 4")
    found = read_configuration_text(text, "job.sh")
    assert found.layout["offload_activations"]
    assert any("--cpu-offloading-num-layers 4 is estimated as 31" in note for note in found.notes)


def test_modules_that_are_not_described_are_said() -> None:
    options = "--recompute-granularity selective --recompute-modules mlp gdn_norm_out"
    found = read_configuration_text(MEGATRON_PLAIN.format(options=options), "job.sh")
    assert found.layout["recompute_modules"] == ("mlp",)
    assert any("recompute of gdn_norm_out is not supported" in note for note in found.notes)


MEGATRON_PLAIN = """torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --seq-length 4096 \\
    --num-attention-heads 32 --micro-batch-size 1 --global-batch-size 64 {options} --bf16
"""


_MEGATRON = """
torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers {layers} --hidden-size 4096 \\
    --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 \\
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size {pp} {said}
"""


@pytest.mark.parametrize(
    ("layers", "pp", "said", "expected"),
    [
        # docs.nvidia.com/megatron-core, Custom Pipeline Model Parallel Layout: DeepSeek-V3
        (61, 16, '--pipeline-model-parallel-layout "Et*3|(tt|)*29,m|L"', ("3,2*29,0*2", 2)),
        (126, 4, '--pipeline-model-parallel-layout "Et*31|t*32|t*32|t*31L"', ((1, 1), 1)),
        (6, 4, '--pipeline-model-parallel-layout "Ett|tt|t|tL"', ("", 1)),
        (
            94,
            16,
            "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
            "--num-layers-per-virtual-pipeline-stage 3",
            ((1, 1), 2),
        ),
        (62, 4, "--decoder-first-pipeline-num-layers 16", ({"first_layers": 16}, 1)),
        (62, 4, "--decoder-last-pipeline-num-layers 14", ({"last_layers": 14}, 1)),
    ],
)
def test_stages_of_megatron_are_read(layers: int, pp: int, said: str, expected: Any) -> None:
    text = _MEGATRON.format(layers=layers, pp=pp, said=said)
    layout = read_configuration_text(text, "run.sh").layout
    told, chunks = expected
    if isinstance(told, tuple):
        told = {"embedding_slots": told[0], "head_slots": told[1]}
    elif isinstance(told, str):
        told = {"split": told} if told else {}
    assert {name: layout[name] for name in STAGE_FIELDS if layout.get(name)} == told
    assert layout["vpp"] == chunks


_TITAN = """
[training]
local_batch_size = 8
seq_len = 2048
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
{said}
"""


_EVERY_SECOND = {"recompute": "full", "recompute_every": 2}


@pytest.mark.parametrize(
    ("said", "recompute"),
    [
        # job_config.py of v0.1.0 to v0.2.2: mode "selective", selective_ac_option "2"
        ("", _EVERY_SECOND),
        ("[activation_checkpoint]", _EVERY_SECOND),
        ("[activation_checkpoint]\nmode = 'selective'", _EVERY_SECOND),
        ("[activation_checkpoint]\nselective_ac_option = 'op'", {"recompute": "selective"}),
        (
            "[activation_checkpoint]\nselective_ac_option = '3'",
            _EVERY_SECOND | {"recompute_every": 3},
        ),
        ("[activation_checkpoint]\nmode = 'full'", {"recompute": "full"}),
        ("[activation_checkpoint]\nmode = 'none'", {"recompute": "none"}),
    ],
)
def test_recompute_of_a_toml_of_torchtitan(said: str, recompute: dict[str, Any]) -> None:
    found = read_configuration_text(_TITAN.format(said=said), "run.toml")
    names = ("recompute", "recompute_every")
    assert {name: found.layout[name] for name in names if name in found.layout} == recompute


@pytest.mark.parametrize(
    ("said", "recompute", "note"),
    [
        # trainer.py of 0.3.0: SelectiveAC
        ("Trainer.Config(steps=1)", "selective", False),
        ("Trainer.Config(activation_checkpoint=FullAC.Config())", "full", False),
        ("Trainer.Config(activation_checkpoint=None)", "none", False),
        ("llama3_70b()", "selective", True),
        ("llama3_70b()\n    config.activation_checkpoint = None", "none", False),
    ],
)
def test_recompute_of_torchtitan_in_python(said: str, recompute: str, note: bool) -> None:
    lines = ["def plan():", f"    config = {said}", "    config.training.local_batch_size = 2"]
    found = read_configuration_text("\n".join([*lines, "    return config"]), "plan.py")
    assert found.layout["recompute"] == recompute
    assert any("set by the flavor" in said for said in found.notes) == note


@pytest.mark.parametrize(
    ("parts", "switches", "words"),
    [
        ('["model", "loss"]', ("compile", "async-tp"), ""),
        (
            '["model"]',
            ("compile", "async-tp"),
            "components = model: layers and loss are estimated as",
        ),
        ('["loss"]', (), "components = loss: neither layers nor loss are estimated as compiled"),
    ],
)
def test_what_torchtitan_compiles(parts: str, switches: tuple[str, ...], words: str) -> None:
    said = f"enable_async_tensor_parallel = true\n[compile]\nenable = true\ncomponents = {parts}"
    found = read_configuration_text(_TITAN.format(said=said), "run.toml")
    assert found.switches == switches
    assert any("compile.components" in note for note in found.notes) == bool(words)
    assert any(words in note for note in found.notes) or not words


@pytest.mark.parametrize(
    ("said", "told"),
    [
        # pytorch/torchtitan docs: the default of both is one
        ("pipeline_parallel_first_stage_less_layers = 1", {}),
        ("pipeline_parallel_last_stage_less_layers = 2", {"embedding_slots": 1, "head_slots": 2}),
        (
            'module_fqns_per_model_part = [["tok_embeddings", "layers.0"], '
            '["layers.1", "layers.2", "layers.3", "norm", "output"]]',
            {"split": "1,3"},
        ),
        (
            'module_fqns_per_model_part = [["tok_embeddings", "layers.0", "layers.1"], '
            '["layers.2", "layers.3", "norm", "output"]]',
            {},
        ),
    ],
)
def test_stages_of_torchtitan_are_read(said: str, told: dict[str, Any]) -> None:
    layout = read_configuration_text(_TITAN.format(said=said), "run.toml").layout
    assert {name: layout[name] for name in STAGE_FIELDS if name in layout} == told


def _megatron_job(said: str) -> dict[str, Any]:
    text = _MEGATRON.format(layers=32, pp=1, said=said)
    return dict(read_configuration_text(text, "run.sh").workload)


def test_ramps_of_megatron_are_read() -> None:
    # training_config.py @d98e8a64: its own example, and that of the increment
    steps = '--step-batch-size-schedule "0:768 250B:1536 500B:3072 750B:6144"'
    text = _MEGATRON.format(layers=32, pp=1, said=steps).replace("--global-batch-size 64", "")
    found = read_configuration_text(text, "run.sh").workload
    assert found["global_batch"] == 6144
    assert found["ramp"] == "250B:768,500B:1536,750B:3072"
    job = Workload(**{**_megatron_job("--rampup-batch-size 16 8 300_000"), "global_batch": 64})
    # six increments of 50,000 sequences of 4096 tokens
    assert parse_ramp(job.ramp) == tuple(
        (50_000 * 4096 * (step + 1), 16 + 8 * step) for step in range(6)
    )


@pytest.mark.parametrize(
    "said",
    [
        "--rampup-batch-size 16 8",
        "--rampup-batch-size 16 0 300",
        "--rampup-batch-size 128 8 300",
        '--step-batch-size-schedule "0:16 nonsense"',
        '--step-batch-size-schedule "0:16 1B:x"',
    ],
)
def test_ramps_that_are_none_are_refused(said: str) -> None:
    with pytest.raises(PlannerError, match=r"is not a start|TOKENS:SEQUENCES|not a whole number"):
        _megatron_job(said)


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ('"bf16": {"enabled": true}, "fp16": {"enabled": "auto"}', "bf16"),
        ('"bf16": {"enabled": false}, "fp16": {"enabled": true}', "fp16"),
        ('"bf16": {"enabled": false}, "fp16": {"enabled": false}', "fp32"),
        # what one section leaves to the program is not decided by the other
        ('"bf16": {"enabled": "auto"}, "fp16": {"enabled": false}', None),
        ('"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}', None),
    ],
)
def test_precision_of_deepspeed_is_what_is_on_or_left_open(
    sections: str, precision: str | None
) -> None:
    read = read_configuration_text(
        f'{{"train_batch_size": 8, "zero_optimization": {{"stage": 1}}, {sections}}}', "ds.json"
    )
    assert {**read.usual, **read.workload}.get("precision") == precision


@pytest.mark.parametrize(
    ("line", "recompute"),
    [
        ("gradient_checkpointing: false", None),
        ("gradient_checkpointing: true", "full"),
        ("disable_gradient_checkpointing: true", None),
        ("disable_gradient_checkpointing: false", "full"),
    ],
)
def test_recompute_is_llama_factorys_default_unless_the_file_says(
    line: str, recompute: str | None
) -> None:
    found = read_configuration_text(f"{FINETUNING}{line}\n", "train.yaml")
    assert found.layout.get("recompute") == recompute
