"""Configurations: the real parsers read them, sums close, and they say what was estimated."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.configurations.reading import read_configuration_text
from planner.describe.layout import Layout
from planner.emitters.recipes.megatron import _uneven_ends
from planner.errors import EmitError, LayoutError
from tests.emitters.emitted import Files, files_of

# layouts as (model, machine, nodes, layout): every stage, offload, hybrid, tiling
DEEPSPEED = {
    "zero0": ("gpt2", "polaris", 1, Layout(dp=4, micro_batch=4, grad_accumulation=2)),
    "zero1": ("llama-3-8b", "polaris", 8, Layout(dp=32, zero_stage=1, grad_accumulation=3)),
    "zero2": ("mistral-7b", "vsc-5", 2, Layout(dp=4, zero_stage=2, micro_batch=2)),
    "zero3": ("llama-3-8b", "perlmutter", 4, Layout(dp=16, zero_stage=3, recompute="full")),
    "cpu": (
        "llama-3-8b",
        "leonardo",
        2,
        Layout(dp=8, zero_stage=3, offload="all-cpu", grad_accumulation=5),
    ),
    "optimizer-cpu": (
        "llama-3-8b",
        "juwels-booster",
        2,
        Layout(dp=8, zero_stage=2, offload="optimizer-cpu"),
    ),
    "nvme": (
        "llama-3-70b",
        "polaris",
        4,
        Layout(dp=16, zero_stage=3, offload="all-nvme", tiles=4),
    ),
    "aurora": ("llama-3-8b", "aurora", 2, Layout(dp=24, zero_stage=3, micro_batch=2)),
}
ACCELERATE = {
    "full": ("llama-3-8b", "frontier", 4, Layout(dp=32, zero_stage=3)),
    "grad-op": ("llama-3-8b", "polaris", 2, Layout(dp=8, zero_stage=2, recompute="full")),
    "hybrid": ("llama-3-8b", "polaris", 4, Layout(dp=16, dp_shard=4, zero_stage=3)),
    "tp": ("llama-3-8b", "vsc-5", 2, Layout(dp=2, tp=2, zero_stage=3, grad_accumulation=4)),
    "cp": ("llama-3-8b", "workstation-4x4090", 1, Layout(dp=2, cp=2, zero_stage=3)),
    "offload": ("llama-3-8b", "aurora", 1, Layout(dp=12, zero_stage=3, offload="all-cpu")),
}


@pytest.fixture(scope="module")
def deepspeed_files() -> dict[str, Files]:
    return {name: files_of(*case, "deepspeed") for name, case in DEEPSPEED.items()}


@pytest.fixture(scope="module")
def accelerate_files() -> dict[str, Files]:
    return {name: files_of(*case, "accelerate") for name, case in ACCELERATE.items()}


# --- DeepSpeed -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed_reads_its_configuration(name: str, deepspeed_files: dict[str, Files]) -> None:
    config = deepspeed_config(json.loads(deepspeed_files[name]["ds_config.json"]), name)
    layout = DEEPSPEED[name][3]
    assert config.train_batch_size == layout.global_batch
    assert config.gradient_accumulation_steps == layout.grad_accumulation
    assert config.bfloat16_config.enabled
    zero = config.zero_config
    assert int(zero.stage) == layout.zero_stage
    if layout.zero_stage:
        assert zero.reduce_bucket_size == 5e8
    off = {"optimizer": zero.offload_optimizer, "param": zero.offload_param}
    found = {key: f"{value.device}" if value else "none" for key, value in off.items()}
    where = layout.offload.rpartition("-")[2]
    assert found["optimizer"] == where
    assert found["param"] == (where if layout.offload.startswith("all-") else "none")


def deepspeed_config(data: dict[str, Any], name: str) -> Any:
    """What the real parser makes of it; it checks the batch against the ranks itself."""
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")
    from deepspeed.runtime import config

    dp = DEEPSPEED[name][3].dp

    class Grid:
        def get_data_parallel_world_size(self) -> int:
            return dp

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config.dist, "get_rank", lambda *_: 0)
        return config.DeepSpeedConfig(data, mpu=Grid())


def test_deepspeed_refuses_what_we_could_get_wrong() -> None:
    """The parser is a check only if it fails on wrong sums and unknown keys."""
    good = json.loads(files_of(*DEEPSPEED["zero3"], "deepspeed")["ds_config.json"])
    with pytest.raises(AssertionError, match="batch"):
        deepspeed_config({**good, "train_batch_size": 17}, "zero3")
    good["zero_optimization"]["stage3_prefetch_bucket"] = 1
    with pytest.raises(ValueError, match="stage3_prefetch_bucket"):
        deepspeed_config(good, "zero3")


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed_batches_close(name: str, deepspeed_files: dict[str, Files]) -> None:
    config = json.loads(deepspeed_files[name]["ds_config.json"])
    assert "auto" not in deepspeed_files[name]["ds_config.json"]
    assert config["train_batch_size"] == (
        config["train_micro_batch_size_per_gpu"]
        * config["gradient_accumulation_steps"]
        * DEEPSPEED[name][3].dp
    )


def test_buffers_of_the_disk_hold_the_largest_parameter(deepspeed_files: dict[str, Files]) -> None:
    config = json.loads(deepspeed_files["nvme"]["ds_config.json"])["zero_optimization"]
    # the embedding of Llama 3 70B: 128,256 rows of 8,192
    assert config["offload_param"]["buffer_size"] >= 128256 * 8192
    assert config["offload_param"]["nvme_path"] == "/local/scratch"
    assert "TiledLinear" in deepspeed_files["nvme"]["README.md"]


# --- Accelerate ------------------------------------------------------------------------------


def launch_arguments(text: str, path: Path) -> Any:
    """What `accelerate launch` makes of a configuration file."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path.write_text(text)
    read = load_config_from_file(str(path))
    parser = launch_command_parser()
    known = {action.dest for action in parser._actions}
    for section in ("fsdp_config", "parallelism_config"):
        # the parser lets misspelt keys of a section pass
        assert set(getattr(read, section)) <= known
    given = parser.parse_args(["--config_file", str(path), "train.py"])
    return _validate_launch_command(given)[0]


@pytest.mark.parametrize("name", ACCELERATE)
def test_accelerate_reads_its_configuration(
    name: str,
    accelerate_files: dict[str, Files],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layout = ACCELERATE[name][3]
    arguments = launch_arguments(accelerate_files[name]["accelerate.yaml"], tmp_path / "a.yaml")
    assert arguments.use_fsdp
    assert arguments.num_processes == layout.world
    assert arguments.num_machines == ACCELERATE[name][2]
    assert arguments.mixed_precision == "bf16"
    environment = library_environment(arguments, monkeypatch)
    assert environment["FSDP_VERSION"] == "2"
    assert environment["FSDP_RESHARD_AFTER_FORWARD"] == str(layout.zero_stage == 3).lower()
    assert environment["FSDP_OFFLOAD_PARAMS"] == str(layout.offload == "all-cpu").lower()
    recomputes = environment["FSDP_ACTIVATION_CHECKPOINTING"]
    assert recomputes == str(layout.recompute == "full").lower()
    from accelerate.parallelism_config import ParallelismConfig

    mesh = ParallelismConfig()
    shard = layout.dp_shard or layout.dp
    assert (mesh.dp_replicate_size, mesh.dp_shard_size) == (layout.dp // shard, shard)
    assert (mesh.tp_size, mesh.cp_size) == (layout.tp, layout.cp)
    assert mesh.total_size == layout.world


def test_full_precision_reaches_accelerate(tmp_path: Path) -> None:
    """Accelerate calls it `no`, which YAML takes for false where it is not quoted."""
    files = files_of(*ACCELERATE["full"], "accelerate", precision="fp32")
    assert launch_arguments(files["accelerate.yaml"], tmp_path / "a.yaml").mixed_precision == "no"


def library_environment(arguments: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables that the launcher hands to the library, set here too."""
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments.main_process_ip = "127.0.0.1"
    arguments.main_process_port = 0
    environment = prepare_multi_gpu_env(arguments)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    return {key: value.lower() for key, value in environment.items()}


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_accelerate_reads_deepspeed(
    name: str, deepspeed_files: dict[str, Files], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds_config.json").write_text(deepspeed_files[name]["ds_config.json"])
    arguments = launch_arguments(deepspeed_files[name]["accelerate.yaml"], Path("a.yaml"))
    assert arguments.use_deepspeed
    assert arguments.deepspeed_config_file == "ds_config.json"
    assert arguments.num_processes == DEEPSPEED[name][3].world


@pytest.mark.parametrize("name", ACCELERATE)
def test_accumulation_reaches_accelerate(name: str, accelerate_files: dict[str, Files]) -> None:
    steps = ACCELERATE[name][3].grad_accumulation
    wanted = f"export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={steps}\n"
    assert wanted in accelerate_files[name]["job.sh"]


# --- Megatron --------------------------------------------------------------------------------

# options of Megatron-LM@d98e8a64 that we write, read off its own parser
MEGATRON_OPTIONS = set(
    re.findall(
        r"\S+",
        """
    attention-backend attention-dropout bf16 context-parallel-size disable-bias-linear add-qkv-bias
    eval-iters glu-linear-offset activation-func-clamp-value quick-geglu softmax-type
    load save save-interval multi-latent-attention q-lora-rank kv-lora-rank qk-head-dim
    qk-pos-emb-head-dim v-head-dim window-attn-skip-freq sgd-momentum moe-shared-expert-gate
    expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size fp16
    fp8-format global-batch-size group-query-attention hidden-dropout hidden-size kv-channels
    log-interval max-position-embeddings micro-batch-size mock-data moe-ffn-hidden-size
    moe-grouped-gemm moe-layer-freq moe-router-topk moe-shared-expert-intermediate-size
    moe-flex-dispatcher-backend moe-router-dtype moe-router-group-topk moe-router-num-groups
    overlap-moe-expert-parallel-comm
    moe-token-dispatcher-type normalization num-attention-heads num-experts num-layers
    num-layers-per-virtual-pipeline-stage num-query-groups optimizer overlap-grad-reduce
    overlap-param-gather pipeline-model-parallel-layout pipeline-model-parallel-size
    position-embedding-type qk-layernorm recompute-granularity recompute-method
    recompute-num-layers seq-length sequence-parallel swiglu tensor-model-parallel-size
    tokenizer-type train-iters untie-embeddings-and-output-weights use-distributed-optimizer
    vocab-size window-size
    """,
    )
)
# options of argonne-lcf/Megatron-DeepSpeed@ffa3456d
MEGATRON_DEEPSPEED_OPTIONS = set(
    re.findall(
        r"\S+",
        """
    accumulate-allreduce-grads-in-fp32 attention-dropout bf16 checkpoint-activations
    checkpoint-num-layers cpu-optimizer deepspeed deepspeed-activation-checkpointing
    deepspeed_config disable-bias-linear ffn-hidden-size fp16 load save save-interval
    global-batch-size hidden-dropout hidden-size kv-channels log-interval max-position-embeddings
    micro-batch-size no-pipeline-parallel normalization num-attention-heads num-key-value-heads
    num-layers optimizer pipeline-model-parallel-size seq-length sequence-parallel swiglu
    tensor-model-parallel-size train-iters untie-embeddings-and-output-weights
    use-flash-attn-builder use-flash-attn-v2 use-rotary-position-embeddings zero-stage
    """,
    )
)
MEGATRON = {
    "3d": (
        "llama-3.1-70b",
        "polaris",
        64,
        Layout(
            dp=8,
            tp=4,
            pp=8,
            vpp=10,
            zero_stage=1,
            sequence_parallel=True,
            schedule="interleaved-1f1b",
            grad_accumulation=16,
            recompute="selective",
        ),
    ),
    "uneven": (
        "llama-3.1-405b",
        "eos",
        64,
        Layout(dp=4, tp=8, pp=16, schedule="1f1b", grad_accumulation=32, recompute="full"),
    ),
    "experts": (
        "qwen3-30b-a3b",
        "dgx-h100",
        1,
        Layout(dp=8, ep=8, zero_stage=1, micro_batch=2),
    ),
    "gpt": ("gpt3-175b", "selene", 64, Layout(dp=8, tp=8, pp=8, schedule="1f1b", micro_batch=2)),
}


def options(text: str) -> dict[str, str]:
    """Options of an argument file: one a line, `--name` or `--name=value`."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"--([\w-]+)(?:=(\S+))?", line)
        assert match, line
        assert match[1] not in found, f"{match[1]} stands twice"
        found[match[1]] = match[2] or ""
    return found


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_arguments(name: str) -> None:
    model, _, nodes, layout = MEGATRON[name]
    files = files_of(*MEGATRON[name], "megatron-lm")
    given = options(files["megatron.args"])
    given |= options(files["data.args"])
    assert set(given) <= MEGATRON_OPTIONS
    described = load_model(model)
    assert int(given["num-layers"]) == described.num_layers
    assert int(given["hidden-size"]) == described.hidden_size
    assert int(given["vocab-size"]) == described.vocab_size
    degrees = [int(given[f"{axis}-model-parallel-size"]) for axis in ("tensor", "pipeline")]
    assert degrees == [layout.tp, layout.pp]
    assert ("sequence-parallel" in given) == layout.sequence_parallel
    assert ("use-distributed-optimizer" in given) == (layout.zero_stage == 1)
    assert int(given["micro-batch-size"]) == layout.micro_batch
    ranks = nodes * load_machine(MEGATRON[name][1]).node.num_devices
    replicas = ranks // (degrees[0] * degrees[1] * int(given["context-parallel-size"]))
    # Megatron derives the accumulation by this division
    passes, rest = divmod(int(given["global-batch-size"]), layout.micro_batch * replicas)
    assert (passes, rest) == (layout.grad_accumulation, 0)
    assert '--lr "${LEARNING_RATE}"' in files["job.sh"]
    assert given["save"] == given["load"] == "checkpoints"
    assert int(given["save-interval"]) > 0


def test_megatron_pipelines() -> None:
    even = options(files_of(*MEGATRON["3d"], "megatron-lm")["megatron.args"])
    assert even["num-layers-per-virtual-pipeline-stage"] == "1"
    assert "pipeline-model-parallel-layout" not in even
    uneven = options(files_of(*MEGATRON["uneven"], "megatron-lm")["megatron.args"])
    stages = uneven["pipeline-model-parallel-layout"].split("|")
    counts = [int(stage.strip("EL").removeprefix("t*")) for stage in stages]
    assert len(counts) == 16
    assert sum(counts) == 126
    assert (stages[0][0], stages[-1][-1]) == ("E", "L")


@pytest.mark.parametrize(
    ("slots", "layers", "counts", "ends"),
    [
        ((1, 0), 32, [10, 11, 11], (True, False)),
        ((0, 1), 32, [11, 11, 10], (False, True)),
        ((1, 1), 31, [10, 11, 10], (True, True)),
        ((2, 1), 30, [9, 11, 10], None),
        ((1, 0), 33, [10, 12, 11], None),
    ],
)
def test_ends_that_count_as_a_layer_are_options_of_megatron(
    slots: tuple[int, int], layers: int, counts: list[int], ends: tuple[bool, bool] | None
) -> None:
    layout = Layout(pp=3, schedule="1f1b", embedding_slots=slots[0], head_slots=slots[1])
    options = [f"account-for-{name}-in-pipeline-split" for name in ("embedding", "loss")]
    expected = {} if ends is None else dict(zip(options, ends, strict=True))
    assert _uneven_ends(layout, layers, counts) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"vpp": 8, "embedding_slots": 1, "head_slots": 1},
            {
                "account-for-embedding-in-pipeline-split": "",
                "account-for-loss-in-pipeline-split": "",
                "num-virtual-stages-per-pipeline-rank": "8",
            },
        ),
        (
            {"first_layers": 7, "last_layers": 7},
            {
                "decoder-first-pipeline-num-layers": "7",
                "decoder-last-pipeline-num-layers": "7",
            },
        ),
        # what Megatron would not deal evenly is spelled out
        (
            {"first_layers": 8},
            {"pipeline-model-parallel-layout": f"E{'t*8|' * 14}t*7|t*7L"},
        ),
        ({"split": "0,9*14,0"}, {"pipeline-model-parallel-layout": f"E|{'t*9|' * 14}L"}),
    ],
)
def test_megatron_is_told_of_stages(fields: dict[str, Any], expected: dict[str, str]) -> None:
    schedule = "interleaved-1f1b" if "vpp" in fields else "1f1b"
    layout = Layout(dp=2, tp=8, pp=16, grad_accumulation=16, schedule=schedule, **fields)
    given = options(
        files_of("llama-3.1-405b", "dgx-h100", 32, layout, "megatron-lm")["megatron.args"]
    )
    names = (*expected, "num-layers-per-virtual-pipeline-stage", "pipeline-model-parallel-layout")
    assert {name: given[name] for name in names if name in given} == expected


def test_megatron_is_told_of_a_ramp() -> None:
    """Its own words: batches by the tokens at which they begin; others have none."""
    layout = Layout(dp=4, tp=4, zero_stage=1, grad_accumulation=16)
    job = ("llama-3-8b", "polaris", 4, layout)
    given = options(files_of(*job, "megatron-lm", ramp="1B:16,2.5B:32")["megatron.args"])
    assert given["step-batch-size-schedule"] == "0:16,1000000000:32,2500000000:64"
    assert "global-batch-size" not in given
    with pytest.raises(
        EmitError, match="the files of deepspeed cannot express ramp = 1B:16; use none"
    ):
        files_of(
            "llama-3-8b", "polaris", 4, layout.replaced(tp=1, dp=16), "deepspeed", ramp="1B:16"
        )


def test_megatron_experts() -> None:
    given = options(files_of(*MEGATRON["experts"], "megatron-lm")["megatron.args"])
    shape = [given[key] for key in ("num-experts", "moe-router-topk", "moe-ffn-hidden-size")]
    # Qwen3-30B-A3B: 128 experts of width 768, 8 of them per token
    assert shape == ["128", "8", "768"]
    assert given["expert-model-parallel-size"] == "8"
    assert "qk-layernorm" in given


def test_megatron_deepspeed_on_aurora() -> None:
    layout = Layout(dp=6, tp=4, zero_stage=1, sequence_parallel=True, grad_accumulation=2)
    files = files_of("llama-3-8b", "aurora", 2, layout, "megatron-deepspeed")
    given = options(files["megatron.args"])
    assert set(given) <= MEGATRON_DEEPSPEED_OPTIONS
    config = json.loads(files["ds_config.json"])
    assert int(given["global-batch-size"]) == config["train_batch_size"] == 12
    assert int(given["zero-stage"]) == config["zero_optimization"]["stage"] == 1
    # the bf16 optimizer accumulates in a whole fp32 buffer: so does the estimate
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert "no-pipeline-parallel" in given
    assert "data.args is missing" in files["job.sh"]


# --- torchtitan, nanotron, FSDP2, DDP --------------------------------------------------------

TITAN = {
    "plain": ("llama-3-8b", "polaris", 8, Layout(dp=32, zero_stage=3, grad_accumulation=2)),
    "hybrid": (
        "llama-3.1-70b",
        "polaris",
        16,
        Layout(dp=16, dp_shard=4, tp=4, sequence_parallel=True, zero_stage=3, recompute="full"),
    ),
    "pipeline": (
        "llama-3.1-70b",
        "perlmutter",
        16,
        Layout(
            dp=4,
            tp=4,
            pp=4,
            vpp=2,
            zero_stage=2,
            sequence_parallel=True,
            schedule="interleaved-1f1b",
            grad_accumulation=8,
            micro_batch=2,
            recompute="selective",
        ),
    ),
    "piped-shards": (
        "llama-3.1-405b",
        "alps",
        32,
        Layout(dp=8, tp=4, pp=4, zero_stage=3, sequence_parallel=True, schedule="1f1b"),
    ),
}


def test_a_v_is_written_where_a_release_runs_it() -> None:
    """torchtitan 0.3.0 does not: its flex attention is compiled. A description that says otherwise
    is enough, and what is written is read back."""
    layout = Layout(
        dp=4,
        tp=4,
        pp=4,
        vpp=2,
        sequence_parallel=True,
        zero_stage=2,
        schedule="zero-bubble-v",
        grad_accumulation=9,
    )
    case, fsdp2 = ("llama-3-8b", "polaris", 16, layout), load_framework("fsdp2")
    with pytest.raises(EmitError, match="schedule = zero-bubble-v is not offered by fsdp2; use"):
        files_of(*case, fsdp2)
    files = files_of(*case, fsdp2.replaced(code=fsdp2.code.replaced(schedules=())))
    for name in ("torchtitan_plan.py", "torchtitan.toml"):
        back = read_configuration_text(files[name], name)
        asked = {field: getattr(layout, field) for field in back.layout}
        assert back.layout == asked
        assert {"schedule", "vpp", "pp", "tp", "zero_stage", "micro_batch"} <= set(asked)
    # chunks in the order of the model: torchtitan gives rank i the parts i and 2 p - 1 - i
    parts = tomllib.loads(files["torchtitan.toml"])["parallelism"]["module_fqns_per_model_part"]
    assert [len(part) for part in parts] == [5, 5, 4, 4, 4, 4, 4, 5]
    assert (parts[0][0], parts[-1][-1]) == ("tok_embeddings", "output")


def test_torchtitan_is_told_of_stages() -> None:
    """Modules of every part, in both releases' files; fully_shard has no pipeline to be told of."""
    layout = Layout(
        dp=4, tp=4, pp=4, sequence_parallel=True, zero_stage=2, schedule="1f1b", split="7,9*2,7",
        grad_accumulation=8,
    )  # fmt: skip
    files = files_of("llama-3-8b", "polaris", 16, layout, "fsdp2")
    parts = tomllib.loads(files["torchtitan.toml"])["parallelism"]["module_fqns_per_model_part"]
    assert [sum(name.startswith("layers.") for name in part) for part in parts] == [7, 9, 9, 7]
    for name in ("torchtitan_plan.py", "torchtitan.toml"):
        assert read_configuration_text(files[name], name).layout["split"] == layout.split
    with pytest.raises(EmitError, match="tp = 4: fsdp2 has no tp axis"):
        files_of("gemma-2-27b", "polaris", 16, layout.replaced(split="11*2,12*2"), "fsdp2")


@pytest.fixture(scope="module")
def titan_files() -> dict[str, Files]:
    return {name: files_of(*case, "fsdp2") for name, case in TITAN.items()}


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_toml(name: str, titan_files: dict[str, Files]) -> None:
    layout = TITAN[name][3]
    config = tomllib.loads(titan_files[name]["torchtitan.toml"])
    mesh = config["parallelism"]
    shards = mesh["data_parallel_shard_degree"]
    replicas = mesh["data_parallel_replicate_degree"] * shards
    others = mesh["tensor_parallel_degree"] * mesh["pipeline_parallel_degree"]
    assert shards == (layout.dp_shard or layout.dp)
    assert replicas * others * mesh["context_parallel_degree"] == layout.world
    training = config["training"]
    local = training["local_batch_size"]
    assert training["global_batch_size"] == layout.global_batch
    if layout.pp == 1:
        assert local == layout.micro_batch
    else:
        # the pipeline splits what a rank is given, and nothing is accumulated around it
        passes, rest = divmod(local, mesh["pipeline_parallel_microbatch_size"])
        assert (passes, rest) == (layout.grad_accumulation, 0)
        assert local * replicas == training["global_batch_size"]
        chunks = mesh["module_fqns_per_model_part"]
        assert len(chunks) == layout.pp * layout.vpp
        layers = [f"layers.{i}" for i in range(load_model(TITAN[name][0]).num_layers)]
        dealt = [part for chunk in chunks for part in chunk]
        assert dealt == ["tok_embeddings", *layers, "norm", "output"]
    assert config["activation_checkpoint"]["mode"] == layout.recompute
    saved = config["checkpoint"]
    assert (saved["enable"], saved["folder"], config["job"]["dump_folder"]) == (
        True,
        "checkpoints",
        ".",
    )


RESHARDS = {"plain": "default", "hybrid": "default", "pipeline": "never", "piped-shards": "always"}


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_reshards_as_counted(name: str, titan_files: dict[str, Files]) -> None:
    """`default` keeps the output layer gathered, as counted, and with a pipeline all layers."""
    mesh = tomllib.loads(titan_files[name]["torchtitan.toml"])["parallelism"]
    assert mesh["fsdp_reshard_after_forward"] == RESHARDS[name]


def settings_of(source: str) -> dict[str, dict[str, Any]]:
    """What a plan assigns, by section."""
    found: dict[str, dict[str, Any]] = {}
    for section, key, value in re.findall(r"    config\.(\w+)\.(\w+) = (.+)", source):
        found.setdefault(section, {})[key] = ast.literal_eval(value)
    return found


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_python_says_the_same(name: str, titan_files: dict[str, Files]) -> None:
    config = tomllib.loads(titan_files[name]["torchtitan.toml"])
    source = titan_files[name]["torchtitan_plan.py"]
    compile(source, "torchtitan_plan.py", "exec")
    said = settings_of(source)
    # 0.3.0 captures CUDA graphs unless told not to, and refuses to with a pipeline
    assert said["training"].pop("disable_cuda_graphs") is True
    assert {"dataset": "c4", **said["training"]} == config["training"]
    # the newer release names the output layer otherwise
    text = json.dumps(config["parallelism"]).replace('"output"', '"lm_head"')
    assert said["parallelism"] == json.loads(text)
    kind = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
    assert f"activation_checkpoint = {kind[TITAN[name][3].recompute]}\n" in source
    assert said["checkpoint"] == config["checkpoint"]


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_inherits_nothing(name: str, titan_files: dict[str, Files]) -> None:
    """Flavors of 0.3.0 switch on FP8, compilation and a loss in chunks: none is started from."""
    source = titan_files[name]["torchtitan_plan.py"]
    assert "config_registry" not in source
    assert "    config = Trainer.Config(\n" in source
    assert "        compile=CompileConfig(enable=False),\n" in source
    assert "        loss=CrossEntropyLoss.Config(global_vocab_size=128256),\n" in source


def test_torchtitan_with_its_own_loss() -> None:
    """Whose loss runs in pieces is told so, in the one release that has words for it."""
    layout = Layout(dp=4, zero_stage=3)
    whole, pieces = (
        files_of("llama-3-8b", "polaris", 1, layout, name) for name in ("fsdp2", "torchtitan")
    )
    assert set(whole) - set(pieces) == {"torchtitan.toml"}
    loss = "CrossEntropyLoss.Config(global_vocab_size=128256)"
    wrapped = (
        "ChunkedLossWrapper.Config(\n            num_chunks=8,\n"
        f"            loss_fn={loss},\n        )"
    )
    plan = whole["torchtitan_plan.py"].replace(f"loss={loss}", f"loss={wrapped}")
    plan = plan.replace("import CrossEntropyLoss", "import ChunkedLossWrapper, CrossEntropyLoss")
    assert pieces["torchtitan_plan.py"] == plan


def test_torchtitan_takes_other_llamas() -> None:
    layout = Layout(dp=2, tp=4, zero_stage=3, sequence_parallel=True)
    files = files_of("mistral-7b", "polaris", 2, layout, "fsdp2")
    config = tomllib.loads(files["torchtitan.toml"])
    assert config["experimental"] == {"custom_import": "torchtitan_model"}
    for name in ("mistral-7b", "llama-2-7b", "auroragpt-7b", "llama-2-13b"):
        model = load_model(name)
        files = files_of(name, "polaris", 2, layout, "fsdp2")
        kept = dict(re.findall(r"    (\w+)=([\d.]+),", files["torchtitan_model.py"]))
        sizes = {key: float(value) for key, value in kept.items()}
        # torchtitan 0.2.2: 8/3 of the width, times the factor, up to the next multiple
        width = int(sizes.get("ffn_dim_multiplier", 1.0) * int(8 * sizes["dim"] / 3))
        rounded = -(-width // sizes["multiple_of"]) * sizes["multiple_of"]
        assert rounded == model.ffn_size, name
        assert (sizes["n_layers"], sizes["vocab_size"]) == (model.num_layers, model.vocab_size)
        newer = dict(re.findall(r"            (\w+)=(\d+),", files["torchtitan_plan.py"]))
        assert (newer["n_layers"], newer["hidden_dim"]) == (
            str(model.num_layers),
            str(model.ffn_size),
        )


@pytest.mark.parametrize(
    ("model", "registry", "axes"),
    [
        ("qwen3-30b-a3b", 'torchtitan.models.qwen3 import model_registry\n.*"30B-A3B"', {"ep": 4}),
        ("deepseek-v3", 'torchtitan.models.deepseek_v3 import .*"671B"', {"ep": 4}),
        ("gpt-oss-20b", 'torchtitan.models.gpt_oss import .*"20b"', {"ep": 4}),
        ("llama-3.2-1b", 'torchtitan.models.llama3 import .*"1B"', {}),
    ],
)
def test_torchtitan_beyond_llama(model: str, registry: str, axes: dict[str, int]) -> None:
    files = files_of(model, "perlmutter", 2, Layout(dp=8, zero_stage=3, **axes), "fsdp2")
    source = files["torchtitan_plan.py"]
    assert re.search(registry, source, re.DOTALL)
    assert f"expert_parallel_degree = {axes.get('ep', 1)}\n" in source
    assert "torchtitan.toml" not in files


def test_megatron_latent_attention() -> None:
    layout = Layout(dp=4, ep=4, zero_stage=1)
    given = options(
        files_of("deepseek-v3", "perlmutter", 1, layout, "megatron-lm")["megatron.args"]
    )
    names = ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim")
    assert [int(given[name]) for name in names] == [1536, 512, 128, 64, 128]
    assert {"multi-latent-attention", "qk-layernorm"} <= set(given)
    # latent attention excludes grouped queries and a width of heads
    assert not {"group-query-attention", "kv-channels"} & set(given)
    assert given["moe-layer-freq"] == "([0]*3+[1]*58)"
    assert (given["moe-router-num-groups"], given["moe-router-group-topk"]) == ("8", "4")


def test_megatron_expert_layers_between_dense_ones(tmp_path: Path) -> None:
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "vocab_size": 32000}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 12}
    config = {"model_type": "qwen3_moe", **sizes, **experts, **heads, "decoder_sparse_step": 3}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    layout = Layout(dp=4, ep=4, zero_stage=1)
    given = options(files_of(str(path), "perlmutter", 1, layout, "megatron-lm")["megatron.args"])
    # transformers 5.23, modeling_qwen3_moe.py: experts where (layer + 1) % 3 == 0
    pattern = eval(given["moe-layer-freq"])
    assert pattern == [int((layer + 1) % 3 == 0) for layer in range(12)]
    path.write_text(json.dumps({**config, "num_hidden_layers": 6}))
    given = options(files_of(str(path), "perlmutter", 1, layout, "megatron-lm")["megatron.args"])
    assert given["moe-layer-freq"] == "([0]*2+[1]*1)*2"


@pytest.mark.parametrize(("passes", "merges"), [(4, True), (1, False)])
def test_megatron_exchanges_tokens_as_counted(tmp_path: Path, passes: int, merges: bool) -> None:
    described = tmp_path / "deepep.toml"
    described.write_text(
        'title = "Megatron-LM with DeepEP"\nlike = "megatron-lm"\nsource = "its options"\n'
        'configuration = "megatron"\n[communication]\nexperts_once_per_node = true\n'
        "overlap_experts = true\n",
        encoding="utf-8",
    )
    layout = Layout(dp=4, ep=4, zero_stage=1, grad_accumulation=passes)
    files = files_of("deepseek-v3", "perlmutter", 1, layout, str(described))
    given = options(files["megatron.args"])
    assert (given["moe-token-dispatcher-type"], given["moe-flex-dispatcher-backend"]) == (
        "flex",
        "deepep",
    )
    assert "package `deep_ep`" in files["README.md"]
    assert given["moe-router-dtype"] == "fp32"  # token_dispatcher.py @d98e8a64: no other
    alone = layout.replaced(ep=1)  # line 1836: its dispatcher takes no rank alone
    files_alone = files_of("deepseek-v3", "perlmutter", 1, alone, str(described))
    given_alone = options(files_alone["megatron.args"])
    assert given_alone["moe-token-dispatcher-type"] == "alltoall"
    assert "package `deep_ep`" not in files_alone["README.md"]
    # both directions need another micro-batch and connections of their own
    assert ("overlap-moe-expert-parallel-comm" in given) == merges
    script = "".join(files.values())
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=32" in script) == merges
    plain = options(
        files_of("deepseek-v3", "perlmutter", 1, layout, "megatron-lm")["megatron.args"]
    )
    assert plain["moe-token-dispatcher-type"] == "alltoall"
    assert "overlap-moe-expert-parallel-comm" not in plain


@pytest.mark.parametrize(
    ("layout", "is_limited"),
    [
        (Layout(dp=4, zero_stage=1), False),
        (Layout(dp=2, tp=2, zero_stage=1), True),
        (Layout(dp=2, cp=2, zero_stage=1), True),
    ],
)
def test_megatron_limits_connections_with_tensor_or_context_parallelism(
    layout: Layout, is_limited: bool
) -> None:
    script = "".join(files_of("llama-3.2-1b", "perlmutter", 1, layout, "megatron-lm").values())
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in script) == is_limited


def test_megatron_gpt_oss() -> None:
    layout = Layout(dp=4, ep=4, zero_stage=1)
    given = options(
        files_of("gpt-oss-20b", "perlmutter", 1, layout, "megatron-lm")["megatron.args"]
    )
    assert given["softmax-type"] == "learnable"
    # every other layer has a window of 128 tokens: its own and 127 before
    assert (given["window-size"], given["window-attn-skip-freq"]) == ("127,0", "2")
    assert "quick-geglu" in given
    assert not {"swiglu", "disable-bias-linear", "add-qkv-bias"} & set(given)


def test_megatron_deepspeed_offloads_with_the_optimizer_that_it_takes() -> None:
    """Its `--cpu-optimizer` asserts `--optimizer=adam`, which then is DeepSpeedCPUAdam."""
    case = ("llama-3-8b", "aurora", 2)
    layout = Layout(dp=24, zero_stage=1, offload="optimizer-cpu")
    given = options(files_of(*case, layout, "megatron-deepspeed")["megatron.args"])
    assert (given["optimizer"], given["cpu-optimizer"]) == ("adam", "")
    plain = Layout(dp=24, zero_stage=1)
    given = options(files_of(*case, plain, "megatron-deepspeed")["megatron.args"])
    assert given["optimizer"] == "adamw"
    assert "cpu-optimizer" not in given


def test_megatron_deepspeed_does_not_start_unsharded_in_bf16() -> None:
    """DeepSpeed sums bf16 gradients in fp32 only where it shards: NotImplementedError else."""
    case = ("llama-3-8b", "aurora", 2, Layout(dp=24), "megatron-deepspeed")
    with pytest.raises(LayoutError, match=r"ZeRO stage 0 .* in bf16; use zero_stage = 1, 2, 3"):
        files_of(*case)
    assert "ds_config.json" in files_of(*case, precision="fp16")


def test_nanotron_yaml() -> None:
    layout = Layout(
        dp=8,
        tp=4,
        pp=2,
        zero_stage=1,
        sequence_parallel=True,
        schedule="1f1b",
        grad_accumulation=4,
        micro_batch=2,
    )
    files = files_of("llama-3-8b", "polaris", 16, layout, "nanotron")
    config = yaml.safe_load(files["nanotron.yaml"])
    mesh, tokens = config["parallelism"], config["tokens"]
    assert (mesh["dp"], mesh["tp"], mesh["pp"], mesh["pp_engine"]) == (8, 4, 2, "1f1b")
    passes = tokens["batch_accumulation_per_replica"]
    assert tokens["micro_batch_size"] * passes * mesh["dp"] == layout.global_batch
    # YAML 1.1 takes 1e-08 for a string
    assert config["optimizer"]["optimizer_factory"]["adam_eps"] == 1e-8
    assert config["optimizer"]["zero_stage"] == 1
    assert config["model"]["model_config"]["num_key_value_heads"] == 8
    assert config["data_stages"][0]["data"]["dataset"] is None
    saved = config["checkpoints"]
    assert saved["checkpoints_path"] == saved["resume_checkpoint_path"] == "checkpoints"


SHARDING = {
    "full": Layout(dp=8, zero_stage=3),
    "hybrid": Layout(dp=8, dp_shard=4, zero_stage=3),
    "grad-op": Layout(dp=8, zero_stage=2),
    "replicated": Layout(dp=8),
}


@pytest.mark.parametrize("name", SHARDING)
def test_fsdp2_module_shards_a_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    layout = SHARDING[name]
    source = files_of("gpt2", "polaris", 2, layout, "fsdp2")["sharding.py"]
    module: dict[str, Any] = {}
    exec(compile(source, "sharding.py", "exec"), module)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=layout.world)
    try:
        layers = torch.nn.ModuleList(torch.nn.Linear(16, 64, bias=False) for _ in range(2))
        model = torch.nn.Sequential(torch.nn.Embedding(32, 16), *layers)
        module["shard"](model, layers, "cpu")
        held = sum(p.to_local().numel() for p in model.parameters())
        group = (layout.dp_shard or layout.dp) if layout.zero_stage else 1
        assert held == (2 * 16 * 64 + 32 * 16) // group
        reshards = layers[0]._get_fsdp_state()._fsdp_param_group.post_forward_mesh_info
        assert (reshards is not None) == (layout.zero_stage == 3)
    finally:
        dist.destroy_process_group()


def test_nanogpt_arguments() -> None:
    layout = Layout(dp=4, micro_batch=8, grad_accumulation=5)
    files = files_of("gpt2", "polaris", 1, layout, "ddp")
    given = options(files["nanogpt.args"])
    # nanoGPT divides by the ranks: 5 passes of each of 4 ranks
    assert int(given["gradient_accumulation_steps"]) == 20
    assert int(given["batch_size"]) == 8
    assert (given["n_layer"], given["n_head"], given["n_embd"]) == ("12", "12", "768")
    assert (given["out_dir"], given["always_save_checkpoint"]) == ("checkpoints", "True")
    # it evaluates 200 batches twice, by itself, every time that it saves
    assert int(given["eval_iters"]) == 10
    # it opens its configurator and its data in the folder where it runs
    assert '[[ -f "configurator.py" ]] || ' in files["job.sh"]
    assert "ln -s CHECKOUT/configurator.py CHECKOUT/data ." in files["README.md"]
    other = files_of("llama-3.2-1b", "polaris", 1, layout, "ddp")
    assert "nanogpt.args" not in other
    assert "batches of 8 sequences and steps after 5" in other["README.md"]


@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b"])
def test_one_rank_is_no_rank_of_nanogpt(model: str) -> None:
    # its train.py wraps the model, and holds buckets, wherever RANK is set; the estimate has none
    files = files_of(model, "polaris", 1, Layout(micro_batch=8), "ddp")
    assert "rank.sh" not in files
    assert "torchrun" not in files["job.sh"]
    assert 'python3 -u "${PROGRAM}"' in files["job.sh"]
