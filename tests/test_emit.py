"""Files that run an answer: real parsers read them, sums close, nothing can be injected."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import slurm

import planner
from planner.catalogue import folder, load_framework, load_machine, load_model, names
from planner.cli import FITS, NOTHING_FITS, WRONG_USE, main
from planner.emit import emit_estimate
from planner.emit.folder import write_folder, zip_bytes
from planner.emit.run import Run
from planner.emit.scheduler import slot
from planner.errors import EmitError
from planner.job import read_job
from planner.layout import Layout
from planner.logs import RunLog
from planner.machine import Machine
from planner.question import Question

Files = dict[str, str]
HOSTILE = 'x";$(touch pwned)`touch pwned`\n#PBS -q evil\n#SBATCH -p evil\n\'"""]}{: &a *a !!x\\'


def files_of(
    model: str,
    machine: str | Machine,
    nodes: int,
    layout: Layout,
    framework: str,
    *,
    sequence_length: int = 1024,
    steps: int | None = None,
    queue: str = "",
    **workload: Any,
) -> Files:
    """Files of one layout, whether it fits or not."""
    described = load_model(model)
    place = machine if isinstance(machine, Machine) else load_machine(machine)
    job = planner.Workload(
        sequence_length=sequence_length, global_batch=layout.global_batch, **workload
    )
    found = planner.estimate(described, place, layout, workload=job, framework=framework)
    plan = _plan(described.name, place.name, nodes, job)
    return emit_estimate(
        plan,
        found,
        model=described,
        machine=place,
        framework=load_framework(framework),
        steps=steps,
        queue=queue,
    )


def _plan(model: str, machine: str, nodes: int, workload: planner.Workload) -> planner.Plan:
    """A plan without a search: only its question."""
    return planner.Plan(
        model, 0, machine, nodes, 0, workload, 0, ranked=(), strategies=(), dropped=(), notes=(),
        queues=(),
    )  # fmt: skip


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
    eval-iters expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size fp16
    fp8-format global-batch-size group-query-attention hidden-dropout hidden-size kv-channels
    log-interval max-position-embeddings micro-batch-size mock-data moe-ffn-hidden-size
    moe-grouped-gemm moe-layer-freq moe-router-topk moe-shared-expert-intermediate-size
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
    deepspeed_config disable-bias-linear distributed-backend ffn-hidden-size fp16
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

TITAN_KEYS = {
    "model": {"name", "flavor"},
    "training": {
        "local_batch_size",
        "global_batch_size",
        "seq_len",
        "steps",
        "enable_cpu_offload",
        "mixed_precision_param",
    },
    "parallelism": {
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "fsdp_reshard_after_forward",
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "pipeline_parallel_schedule",
        "pipeline_parallel_microbatch_size",
        "pipeline_parallel_layers_per_stage",
        "context_parallel_degree",
        "expert_parallel_degree",
    },
    "activation_checkpoint": {"mode", "selective_ac_option"},
}
"""Sections and keys that we write, as torchtitan 0.2.2 declares them."""
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
}


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_toml(name: str) -> None:
    layout = TITAN[name][3]
    files = files_of(*TITAN[name], "fsdp2")
    config = tomllib.loads(files["torchtitan.toml"])
    assert {section: set(keys) <= TITAN_KEYS[section] for section, keys in config.items()} == (
        dict.fromkeys(TITAN_KEYS, True)
    )
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
    assert config["activation_checkpoint"]["mode"] == layout.recompute


@pytest.mark.parametrize("name", TITAN)
def test_torchtitan_python_says_the_same(name: str) -> None:
    files = files_of(*TITAN[name], "fsdp2")
    config = tomllib.loads(files["torchtitan.toml"])
    source = files["torchtitan_plan.py"]
    compile(source, "torchtitan_plan.py", "exec")
    said = dict(re.findall(r"config\.(\w+\.\w+) = (.+)", source))
    # 0.3.0 captures CUDA graphs unless told not to, and refuses to with a pipeline
    assert said.pop("training.disable_cuda_graphs") == "True"
    wanted = {
        f"{section}.{key}": json.dumps(value) if isinstance(value, str) else str(value)
        for section in ("training", "parallelism")
        for key, value in config[section].items()
    }
    assert said == wanted
    kind = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
    assert f"activation_checkpoint = {kind[TITAN[name][3].recompute]}\n" in source


def test_nanotron_yaml() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
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
    source = files_of("mistral-7b", "polaris", 2, layout, "fsdp2")["sharding.py"]
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
    given = options(files_of("gpt2", "polaris", 1, layout, "ddp")["nanogpt.args"])
    # nanoGPT divides by the ranks: 5 passes of each of 4 ranks
    assert int(given["gradient_accumulation_steps"]) == 20
    assert int(given["batch_size"]) == 8
    assert (given["n_layer"], given["n_head"], given["n_embd"]) == ("12", "12", "768")
    other = files_of("llama-3.2-1b", "polaris", 1, layout, "ddp")
    assert "nanogpt.args" not in other
    assert "batches of 8 sequences and steps after 5" in other["README.md"]


# --- job scripts -----------------------------------------------------------------------------

LLAMA = Layout(dp=8, zero_stage=3, recompute="full")
PLACES = [
    name
    for name in names("machine")
    if load_machine(name).scheduler.kind in ("pbs", "slurm", "none")
]


def place_files(name: str, framework: str = "deepspeed", nodes: int = 2, **options: Any) -> Files:
    """Files of a plain job on a machine."""
    machine = load_machine(name)
    nodes = 1 if machine.scheduler.kind == "none" else min(nodes, int(machine.num_nodes.value))
    precision = next(p for p in ("bf16", "fp16", "fp32") if p in machine.device.peak_flop_per_s)
    zero = 0 if framework == "ddp" else 3
    ranks = nodes * machine.node.num_devices
    if framework == "accelerate" and ranks == 1:
        zero = 0
    layout = Layout(dp=ranks, zero_stage=zero)
    return files_of("gpt2", machine, nodes, layout, framework, precision=precision, **options)


def scripts(files: Files) -> Files:
    return {name: text for name, text in files.items() if name.endswith(".sh")}


def run_on(text: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
def test_bash_reads_the_scripts(name: str, framework: str) -> None:
    for text in scripts(place_files(name, framework)).values():
        done = run_on(text, "bash", "-n")
        assert (done.returncode, done.stderr) == (0, "")
        assert text.startswith("#!/bin/bash")
        assert "set -euo pipefail" in text


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("name", PLACES)
def test_shellcheck_finds_nothing(name: str) -> None:
    found = [
        text
        for framework in ("deepspeed", "accelerate", "ddp")
        for text in scripts(place_files(name, framework)).values()
    ]
    for text in dict.fromkeys(found):
        done = run_on(text, "shellcheck", "-S", "info", "-")
        assert (done.returncode, done.stdout) == (0, "")


PBS_OPTIONS = {
    "N": r"[A-Za-z][\w.-]{0,229}",
    "q": r"[\w.-]+",
    "A": r"[\w-]+",
    "k": r"doe",
    "j": r"oe",
    "l": r"select=\d+|walltime=\d\d:\d\d:\d\d|place=scatter|filesystems=\w+(:\w+)*",
}
MANDATORY = {"alcf": {"select", "walltime", "filesystems"}}


def pbs_directives(text: str) -> dict[str, str]:
    """Directives of a script as PBS reads them: up to the first line that is no comment."""
    found: dict[str, str] = {}
    shebang, *rest = text.splitlines()
    assert shebang == "#!/bin/bash -l"
    for line in rest:
        if not line.startswith("#PBS"):
            # PBS may take a comment between directives for one of them
            assert not line.startswith("#")
            break
        match = re.fullmatch(r"#PBS -(\w) (\S+)", line)
        assert match, line
        option, value = match.groups()
        assert re.fullmatch(PBS_OPTIONS[option], value), line
        key = value.partition("=")[0] if option == "l" else option
        assert key not in found, f"{key} stands twice"
        found[key] = value.partition("=")[2] or value
    assert "#PBS" not in text.partition("\n\n")[2]
    return found


def seconds(walltime: str) -> int:
    hours, minutes, rest = map(int, walltime.split(":"))
    return 3600 * hours + 60 * minutes + rest


@pytest.mark.parametrize(
    ("machine", "nodes", "queue", "hours"),
    [
        ("polaris", 2, "debug", 1),
        ("polaris", 16, "prod", 3),
        ("polaris", 64, "prod", 6),
        ("polaris", 128, "prod", 24),
        ("aurora", 16, "debug-scaling", 1),
        ("aurora", 512, "prod", 12),
        ("sophia", 8, "by-node", 24),
    ],
)
def test_pbs_directives(machine: str, nodes: int, queue: str, hours: float) -> None:
    # as many steps as the queue's limit holds, whatever the step takes
    text = place_files(machine, nodes=nodes, steps=1 if hours == 1 else 10**7)["job.sh"]
    given = pbs_directives(text)
    assert MANDATORY["alcf"] <= set(given)
    assert given["q"] == queue
    assert int(given["select"]) == nodes
    assert seconds(given["walltime"]) <= hours * 3600
    if hours > 1:
        assert seconds(given["walltime"]) == hours * 3600
    ranks = nodes * load_machine(machine).node.num_devices
    each = machine != "sophia"
    assert f"mpiexec --verbose --envall -n {ranks if each else nodes} " in text


def test_aurora_binds_by_list() -> None:
    """Depth would let the seventh rank straddle the sockets, and cores 0 and 52 are reserved."""
    text = place_files("aurora")["job.sh"]
    (bound,) = re.findall(r"--cpu-bind list:(\S+)", text)
    cores = [range(int(a), int(b) + 1) for a, b in (part.split("-") for part in bound.split(":"))]
    assert len(cores) == 12
    used = [core for part in cores for core in part]
    assert len(set(used)) == len(used)
    assert not {0, 52} & set(used)
    assert all({core // 52 for core in part} in ({0}, {1}) for part in cores)
    assert "export CCL_PROCESS_LAUNCHER=pmix\n" in text


def test_ranks_reach_torch() -> None:
    wrapper = place_files("polaris")["rank.sh"]
    done = subprocess.run(
        ["bash", "-c", wrapper, "rank.sh", "bash", "-c", 'echo "$RANK $LOCAL_RANK"'],
        env={"PATH": os.environ["PATH"], "PMI_RANK": "5", "PMI_LOCAL_RANK": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "5 1\n"
    # one device is visible to each process there, and it is number 0
    assert "LOCAL_RANK=0" in place_files("frontier")["rank.sh"]


@pytest.mark.parametrize("machine", ["polaris", "perlmutter"])
def test_submitting_needs_an_account(machine: str, tmp_path: Path) -> None:
    text = place_files(machine)["submit.sh"]
    (tmp_path / "submit.sh").write_text(text)
    command = "qsub" if machine == "polaris" else "sbatch"
    (tmp_path / command).write_text('#!/bin/bash\necho "$@"\n')
    (tmp_path / command).chmod(0o755)
    clean = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    stopped = submit(tmp_path, clean)
    assert stopped.returncode != 0
    assert stopped.stdout == ""
    (sentence,) = stopped.stderr.splitlines()
    assert sentence.endswith("PROJECT: set it to the account that pays for the job")
    done = submit(tmp_path, {**clean, "PROJECT": "climate"})
    assert "climate" in done.stdout
    assert done.stdout.endswith("job.sh\n")


def submit(folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "submit.sh"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_job_without_its_program_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(place_files("workstation-4x4090")["job.sh"])
    done = subprocess.run(
        ["bash", "job.sh"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "train.py is missing: put it here, or set PROGRAM to its path\n"


def test_a_workstation_runs_its_program(tmp_path: Path) -> None:
    """The whole script runs: torchrun is a stand-in that prints what it was asked."""
    for name, text in place_files("workstation-4x4090").items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "torchrun").write_text('#!/bin/bash\necho "torchrun $*"\n')
    (tmp_path / "torchrun").chmod(0o755)
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = "torchrun --standalone --nproc-per-node=4 train.py --deepspeed --deepspeed_config"
    assert done.stdout.startswith(wanted)
    assert (tmp_path / "run.log").read_text() == done.stdout


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("steps", [1, 1000, 10**7])
def test_wall_times_stay_within_the_queue(name: str, steps: int) -> None:
    machine = load_machine(name)
    layout = Layout(dp=machine.node.num_devices)
    precision = next(p for p in ("bf16", "fp16", "fp32") if p in machine.device.peak_flop_per_s)
    job = planner.Workload(
        sequence_length=1024, global_batch=layout.global_batch, precision=precision
    )
    model, framework = load_model("gpt2"), load_framework("ddp")
    found = planner.estimate(model, machine, layout, workload=job, framework=framework)
    place = slot(Run(Question(model, machine, job, framework), found, 1, steps))
    free = [q for q in machine.scheduler.queues if q.min_nodes == 1 and not q.on_request]
    assert (place.queue is None) == (not machine.scheduler.queues)
    assert place.steps * place.jobs >= steps
    if place.queue:
        assert place.queue in free
        assert 0 < place.seconds <= place.queue.max_hours * 3600
        # no shorter queue would have held it
        shorter = [q for q in free if q.max_hours < place.queue.max_hours]
        assert all(q.max_hours * 3600 < place.seconds for q in shorter)
    if place.jobs == 1:
        assert place.seconds >= steps * found.interval_step_time_s[1]


def test_a_queue_by_name() -> None:
    assert "#PBS -q preemptable\n" in place_files("polaris", queue="preemptable")["job.sh"]
    assert "#SBATCH --partition=mine\n" in place_files("dgx-h100", queue="mine")["job.sh"]
    for queue, words in (("prod", "use one of debug"), ("a;b", "no name of a queue")):
        with pytest.raises(EmitError, match=words):
            place_files("polaris", queue=queue)


def test_a_run_that_is_cut_is_told_of_longer_queues() -> None:
    text = place_files("aurora", nodes=32, steps=10**7)["README.md"]
    assert "asks queue debug-scaling for 01:00:00" in text
    assert "Longer queues: prod (small) (256-1024 nodes, 12 h)" in text
    assert "capacity (1-16 nodes, 168 h)" in text
    assert "visualization" not in text


def test_no_queue_admits_so_many_nodes() -> None:
    with pytest.raises(EmitError, match="550 nodes fit no queue of polaris"):
        place_files("polaris", nodes=550)


def test_machines_without_a_script() -> None:
    for name in ("summit", "thetagpu"):
        with pytest.raises(EmitError, match="no job script is written"):
            place_files(name)


# --- a real Slurm ----------------------------------------------------------------------------

SLURM = {
    "vsc-5": (1, 2, 61),
    "vsc-5-a40": (1, 45),
    "perlmutter": (1, 64),
    "perlmutter-80gb": (1, 64),
    "frontier": (1, 100, 2000),
    "lumi-g": (1, 8, 512),
    "leonardo": (1, 64),
    "juwels-booster": (1, 64),
    "alps": (1, 100),
    "vista": (1, 64),
}


@pytest.fixture(scope="module")
def controlled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if slurm.missing():
        pytest.skip(slurm.missing())
    with slurm.controller(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["deepspeed", "accelerate"])
@pytest.mark.parametrize("machine", SLURM)
def test_slurm_accepts(machine: str, framework: str, controlled: dict[str, str]) -> None:
    for nodes in SLURM[machine]:
        for steps in (1, 10**7):
            text = place_files(machine, framework, nodes=nodes, steps=steps)["job.sh"]
            code, said = slurm.offered(text, controlled)
            assert code == 0, (said, text)
            # "... to start at ... using 64 processors on nodes vsc[1-2] in partition ..."
            assert "to start at" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("--gres=gpu:2", "--gres=gpu:4"),
        ("--partition=zen3_0512_a100x2", "--partition=zen3_0512_a100"),
        ("--nodes=2", "--nodes=62"),
        (r"--time=\S+", "--time=96:00:00"),
        ("--ntasks-per-node=1", "--tasks-on-node=1"),
        ("--gres=gpu:2", "--gres=gpu:2 --constraint=hbm80g"),
    ],
)
def test_slurm_refuses_mistakes(old: str, new: str, controlled: dict[str, str]) -> None:
    """The controller is a check only if it refuses what a mistake would ask for."""
    text = place_files("vsc-5", nodes=2)["job.sh"]
    changed, count = re.subn(f"#SBATCH {old}", f"#SBATCH {new}", text, count=1)
    assert count == 1
    code, said = slurm.offered(changed, controlled)
    assert code != 0, said


# --- the folder ------------------------------------------------------------------------------


def test_the_layout_is_read_back_by_compare(tmp_path: Path) -> None:
    layout = Layout(dp=16, dp_shard=4, zero_stage=3, grad_accumulation=3, recompute="full")
    files = files_of("llama-3-8b", "polaris", 4, layout, "accelerate", precision="bf16")
    path = tmp_path / "layout.json"
    path.write_text(files["layout.json"])
    log = RunLog("run.log", "", "", "accelerate", 0, 0, 0, steps=(), facts={}, notes=())
    job = read_job(log, "polaris", path)
    assert job.layout == layout
    assert job.assumptions == ()
    assert job.question.model == load_model("llama-3-8b")
    assert job.question.framework.name == "accelerate"
    assert job.question.workload.sequence_length == 1024


def test_the_readme_states_the_estimate() -> None:
    case = DEEPSPEED["cpu"]
    found = planner.estimate(
        case[0],
        case[1],
        case[3],
        workload=planner.Workload(sequence_length=1024, global_batch=case[3].global_batch),
        framework="deepspeed",
    )
    text = files_of(*case, "deepspeed")["README.md"]
    shown = re.findall(r"^\| ([a-z ]+) \| ", text, re.MULTILINE)
    parts = [*found.memory_bytes.items(), *found.host_memory_bytes.items()]
    counted = [name.replace("_", " ") for name, value in parts if value]
    assert [name for name in shown if not name.startswith(("memory of", "host memory"))] == counted
    totals = re.findall(r"^\| total \| ([\d.]+) GiB \|$", text, re.MULTILINE)
    expected = [found.memory_bytes["total"] / 2**30, found.host_memory_bytes["total"] / 2**30]
    assert [float(total) for total in totals] == pytest.approx(expected, abs=0.006)
    assert "planner compare run.log --machine leonardo --layout layout.json" in text
    assert "DeepSpeedCPUAdam" in text


def test_every_file_is_explained_and_ends_in_a_line() -> None:
    for files in (place_files("polaris"), place_files("vsc-5", "accelerate")):
        explained = set(re.findall(r"^- `([\w.]+)`: ", files["README.md"], re.MULTILINE))
        assert set(files) - explained == {"README.md"}
        assert list(files) == sorted(files)
        for text in files.values():
            assert text.endswith("\n")
            assert text.isascii()
            assert not re.search(r"/(work|tmp|root|home/)", text)


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "ddp", "fsdp2", "nanotron"])
def test_same_input_same_bytes(framework: str) -> None:
    name = "llama-3-8b"
    layout = Layout(dp=8, zero_stage=1 if framework == "nanotron" else 3)
    if framework == "ddp":
        layout = Layout(dp=8)
    first = files_of(name, "polaris", 2, layout, framework)
    assert first == files_of(name, "polaris", 2, layout, framework)
    assert zip_bytes(first) == zip_bytes(dict(reversed(first.items())))


def test_the_archive_holds_the_files() -> None:
    files = place_files("polaris")
    with zipfile.ZipFile(BytesIO(zip_bytes(files))) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == files
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    assert modes["submit.sh"] == 0o755
    assert modes["README.md"] == 0o644


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    write_folder({"a.sh": "1\n", "b": "2\n"}, folder)
    assert os.access(folder / "a.sh", os.X_OK)
    (folder / "b").write_text("mine")
    with pytest.raises(EmitError, match=r"already holds b; .* --force"):
        write_folder({"b": "3\n", "c": "4\n"}, folder)
    assert (folder / "b").read_text() == "mine"
    assert not (folder / "c").exists()
    write_folder({"b": "3\n", "c": "4\n"}, folder, force=True)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "a.sh": "1\n",
        "b": "3\n",
        "c": "4\n",
    }


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    # a folder stands where the second file must go: the first must not be left alone there
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "kept").write_text("mine")
    with pytest.raises(EmitError, match="cannot write"):
        write_folder({"b": "2\n", "c": "3\n"}, tmp_path, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    for path in ("/proc/none", "a\0b"):
        with pytest.raises(EmitError, match="cannot write"):
            write_folder({"a": "1"}, Path(path))


# --- what cannot be written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("framework", "model", "layout", "options", "words"),
    [
        ("horovod", "gpt2", Layout(dp=4), {}, "use a framework of today"),
        ("megatron-lm", "gemma-2-27b", Layout(dp=4), {}, "4 normalisations a layer"),
        ("megatron-lm", "bloom-176b", Layout(dp=4), {}, "alibi positions"),
        ("megatron-lm", "gpt2", Layout(dp=4), {"optimizer": "adafactor"}, "use adamw or sgd"),
        ("megatron-lm", "gpt2", Layout(dp=4), {"lora_rank": 8}, "runs your own program"),
        ("nanotron", "qwen2.5-7b", Layout(dp=4), {}, "has biases"),
        ("fsdp2", "mistral-7b", Layout(dp=2, tp=2, sequence_parallel=True), {}, "tp = pp = cp"),
        ("accelerate", "gpt2", Layout(dp=4), {}, "framework ddp"),
        ("accelerate", "gpt2", Layout(tp=4, zero_stage=3), {}, "dp or cp above 1"),
    ],
)
def test_refusals(
    framework: str, model: str, layout: Layout, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(EmitError, match=words) as refused:
        files_of(model, "polaris", 1, layout, framework, **options)
    assert len(str(refused.value)) < 400
    assert "\n" not in str(refused.value)


def test_disks_that_are_not_described() -> None:
    layout = Layout(dp=1, zero_stage=3, offload="all-nvme")
    with pytest.raises(EmitError, match="add local_disk"):
        files_of("gpt2", "workstation-1x4090", 1, layout, "deepspeed")


def test_adapters_are_said_to_the_user() -> None:
    files = place_files("polaris", lora_rank=8, lora_targets=("query",), frozen=("embedding",))
    assert "LoRA adapters of rank 8 on query." in files["README.md"]
    assert "freezes embedding." in files["README.md"]


def test_ranks_of_a_plan() -> None:
    job = planner.Workload(sequence_length=1024, global_batch=64)
    plan = planner.plan("gpt2", "polaris", nodes=1, workload=job, frameworks=["deepspeed"], top=3)
    second = planner.emit(plan, 2)
    assert json.loads(second["layout.json"])["layout"] == plan.ranked[1].layout.model_dump()
    for rank in (0, 4):
        with pytest.raises(EmitError, match="use 1 to 3"):
            planner.emit(plan, rank)
    with pytest.raises(EmitError, match="steps = 0"):
        planner.emit(plan, steps=0)
    full = planner.plan("llama-3.1-405b", "vsc-5", nodes=1)
    with pytest.raises(EmitError, match="nothing fits"):
        planner.emit(full)


def written(plan: planner.Plan, rank: int) -> tuple[Files, str]:
    """Files, or the sentence that refuses them."""
    try:
        return planner.emit(plan, rank), ""
    except EmitError as refusal:
        return {}, str(refusal)


# every catalogued framework with the plans of four unlike models: files, or one sentence
@pytest.mark.parametrize("framework", names("framework"))
@pytest.mark.parametrize("model", ["llama-3-8b", "qwen3-30b-a3b", "gpt2", "gemma-2-27b"])
def test_every_plan_is_written_or_refused(model: str, framework: str) -> None:
    machine = "aurora" if framework == "megatron-deepspeed" else "polaris"
    job = planner.Workload(sequence_length=1024, global_batch=48)
    plan = planner.plan(model, machine, nodes=2, workload=job, frameworks=[framework], top=4)
    for rank, found in enumerate(plan.ranked, 1):
        files, refusal = written(plan, rank)
        assert files or re.search(r"; (use|take|plan|emit)\b", refusal), refusal
        if not files:
            continue
        layout = found.layout
        assert Layout.described(json.loads(files["layout.json"])["layout"]) == layout
        assert layout.global_batch == 48
        for text in scripts(files).values():
            assert run_on(text, "bash", "-n").returncode == 0


# --- hostile names ---------------------------------------------------------------------------


def asked_for(script: str) -> list[str]:
    """What the directives of a script ask for, without name, time and queue."""
    lines = re.findall(r"^#(?:PBS|SBATCH) .*", script, re.MULTILINE)
    varying = re.compile(r"-N |--job-name=|time=|-q |tasks-per-node")
    return [line for line in lines if not varying.search(line)]


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "megatron-lm", "nanotron"])
@pytest.mark.parametrize("kind", ["polaris", "vsc-5", "workstation-4x4090"])
def test_names_cannot_inject(framework: str, kind: str, tmp_path: Path) -> None:
    machine = load_machine(kind).replaced(name=HOSTILE)
    model = load_model("llama-3-8b").replaced(name=HOSTILE)
    zero = {"megatron-lm": 1, "nanotron": 1}.get(framework, 3)
    layout = Layout(dp=machine.node.num_devices, zero_stage=zero)
    job = planner.Workload(sequence_length=1024, global_batch=layout.global_batch)
    found = planner.estimate(model, machine, layout, workload=job, framework=framework)
    plan = _plan(HOSTILE, HOSTILE, 1, job)
    files = emit_estimate(plan, found, model=model, machine=machine)
    for name, text in files.items():
        assert not re.search(r"[$`;\"'(]\s*touch", text), name
    clean = place_files(kind, nodes=1)["job.sh"]
    asked = [asked_for(text) for text in (files["job.sh"], clean)]
    assert asked[0] == asked[1]
    assert "YOUR-MODEL.toml" in files["README.md"]
    assert "model" not in json.loads(files["layout.json"])
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    for name in files:
        if name.endswith(".yaml"):
            assert isinstance(yaml.safe_load(files[name]), dict)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    # run the scripts: whatever is inside a name, nothing but the missing program stops them
    for name in scripts(files):
        subprocess.run(["bash", name], cwd=tmp_path, capture_output=True, check=False, timeout=20)
    assert not (tmp_path / "pwned").exists()


# --- the command -----------------------------------------------------------------------------

MISTRAL = "emit mistral-7b --machine vsc-5 --nodes 2 --seq-length 4096 --global-batch 64"


def command(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a call in this process."""
    with pytest.raises(SystemExit) as stopped:
        main(line.split())
    out, err = capsys.readouterr()
    assert isinstance(stopped.value.code, int)
    return stopped.value.code, out, err


def test_the_command_writes_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(capsys, MISTRAL)
    assert (code, err) == (FITS, "")
    folder = tmp_path / "mistral-7b-vsc-5"
    found = {path.name: path.read_text() for path in folder.iterdir()}
    assert {"README.md", "job.sh", "layout.json", "submit.sh"} <= set(found)
    assert out == f"mistral-7b-vsc-5: {', '.join(sorted(found))}\n"
    # the same files again, printed
    _, printed, _ = command(capsys, f"{MISTRAL} --dry-run")
    assert printed == "".join(f"==> {n} <==\n{t}\n" for n, t in sorted(found.items()))
    (folder / "README.md").write_text("mine")
    code, out, err = command(capsys, MISTRAL)
    assert (code, out) == (WRONG_USE, "")
    assert "--force" in err
    assert (folder / "README.md").read_text() == "mine"
    code, _, _ = command(capsys, f"{MISTRAL} --force")
    assert code == FITS
    assert (folder / "README.md").read_text() == found["README.md"]


def test_the_command_says_what_it_cannot_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(capsys, "emit llama-3.1-405b -m vsc-5")
    assert (code, out) == (NOTHING_FITS, "")
    assert err.startswith("nothing fits: ")
    for line, words in {
        "emit gpt2 -m polaris -f ddp --rank 999": "use 1 to",
        "emit gpt2 -m polaris --rank 0": "--rank",
        "emit gpt2 -m polaris --steps 0": "--steps",
        "emit gpt2 -m polaris -f ddp --queue $(x)": "no name of a queue",
        "emit gpt2 -m summit --precision fp16 -f deepspeed --global-batch 48": "lsf",
        "emit gpt2 -m polaris -f ddp -o /proc/none": "cannot write",
    }.items():
        code, out, err = command(capsys, line)
        assert (code, out) == (WRONG_USE, ""), line
        assert words in err, line
        assert len(err.splitlines()) == 1, line
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_names_a_layout_that_can_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "emit qwen2.5-7b -m polaris -n 2 --global-batch 64 -f fsdp2 -f deepspeed --dry-run"
    for rank in range(1, 21):
        code, out, err = command(capsys, f"{line} --rank {rank}")
        if code == WRONG_USE:
            break
    else:
        pytest.fail("every layout can be written: take another question for this test")
    (other,) = re.findall(r"; --rank (\d+) can be written", err)
    code, out, _ = command(capsys, f"{line} --rank {other}")
    assert code == FITS
    assert out.startswith("==> README.md <==\n")


def test_own_descriptions_are_taken(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = folder("model") / "llama-3.2-1b.toml"
    Path("mine.toml").write_text(source.read_text())
    line = "emit ./mine.toml -m polaris --set node.num_devices=2 --set node.nic_of_device=[0,1]"
    code, out, err = command(capsys, f"{line} -f deepspeed --global-batch 64 --dry-run")
    assert (code, err) == (FITS, "")
    assert "--ppn 2 " in out
    assert "--machine YOUR-MACHINE.toml --layout layout.json --model YOUR-MODEL.toml" in out
