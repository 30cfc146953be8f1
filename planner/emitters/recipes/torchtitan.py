"""torchtitan: a TOML file for releases up to 0.2.2 and a Python configuration for 0.3.0.

0.3.0 reads no TOML any more: it takes a function that returns a configuration. Its Llama takes the
sizes of its own flavors only; 0.2.2 takes any, from a module that it imports first.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypeAlias

from planner.cost.shards.pipeline import EndLayers, layers_on_stage
from planner.describe.model.model import Model
from planner.emitters.batch_job import BatchJob
from planner.emitters.limits import LLAMA, TORCH_DTYPES, Words
from planner.emitters.recipe import File, Recipe
from planner.emitters.recipes import fully_shard
from planner.emitters.text import toml_text

__all__ = ["recipe"]

_Tables: TypeAlias = dict[str, dict[str, Any]]

_FLAVORS = {
    (32, 4096, 32, 8, 14336, 128256): "8B",
    (80, 8192, 64, 8, 28672, 128256): "70B",
    (126, 16384, 128, 8, 53248, 128256): "405B",
}
"""Shapes (layers, width, heads, key-value heads, feed-forward, vocabulary) that both releases know
as flavors of their module llama3."""
_OURS = "planned"
_PRECISIONS = Words(
    "precision", "torchtitan", {name: TORCH_DTYPES[name] for name in ("bf16", "fp32", "tf32")}
)
_SCHEDULES = Words(
    "schedule",
    "torchtitan, whose zero-bubble schedules hold two chunks a stage",
    {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved-1f1b": "Interleaved1F1B"},
)
_CHECKPOINTING = {"none": "", "selective": "SelectiveAC", "full": "FullAC"}
"""Classes of 0.3.0's activation_checkpoint."""
_START = Recipe(files=(), program="-m torchtitan.train", default_program="")


def recipe(job: BatchJob) -> Recipe:
    """torchtitan's files for a Llama; for other models FSDP2 alone."""
    odd = LLAMA.lacks(job.model, job.workload.sequence_length)
    if odd or job.model.tied_embeddings:
        return fully_shard.recipe(job)
    flavor = _flavor(job.model)
    tables = {"training": _training(job), "parallelism": _parallelism(job, "output")}
    return _known(job, flavor, tables) if flavor else _sized(job, tables)


def _known(job: BatchJob, flavor: str, tables: _Tables) -> Recipe:
    """Files for a model that both releases know; they name its output layer differently."""
    newer = {**tables, "parallelism": _parallelism(job, "lm_head")}
    what = "torchtitan's configuration for release 0.3.0"
    return replace(
        _START,
        files=(
            _toml(job, flavor, tables),
            File("torchtitan_plan.py", what, _python(job, flavor, newer)),
        ),
        arguments=("--module torchtitan_plan", "--config plan"),
        notes=(
            "`job.sh` starts torchtitan 0.3.0 with `torchtitan_plan.py`. For 0.2.2 and older, "
            "replace `--module torchtitan_plan --config plan` there by `--job.config_file "
            "torchtitan.toml`.",
            "The tokenizer comes from `hf_assets_path`, which you download first; the learning "
            "rate, data and checkpoints are torchtitan's defaults for this model.",
        ),
    )


def _sized(job: BatchJob, tables: _Tables) -> Recipe:
    """Files for a Llama of other sizes: 0.2.2 imports its shapes under a name of ours."""
    imports = {"experimental": {"custom_import": "torchtitan_model"}}
    sizes = "the model's sizes, which torchtitan imports"
    return replace(
        _START,
        files=(
            _toml(job, _OURS, {**tables, **imports}),
            File("torchtitan_model.py", sizes, _shapes(job.model)),
        ),
        arguments=("--job.config_file torchtitan.toml",),
        notes=(
            "Use torchtitan 0.2.2: newer releases know the Llamas of Meta only, unless you add "
            "yours to their registry.",
            "Add `[model] hf_assets_path` with the model's tokenizer. The base of the rotary "
            "positions, learning rate, data and checkpoints are torchtitan's defaults.",
        ),
    )


def _shapes(model: Model) -> str:
    """The module that names the model's shapes to torchtitan."""
    least = 8 * model.hidden_size // 3
    lines = [
        '"""A Llama of these sizes for torchtitan 0.2.2."""',
        "",
        "from torchtitan.models.llama3 import TransformerModelArgs, llama3_args",
        "",
        f'llama3_args["{_OURS}"] = TransformerModelArgs(',
        f"    dim={model.hidden_size},",
        f"    n_layers={model.num_layers},",
        f"    n_heads={model.num_heads},",
        f"    n_kv_heads={model.num_kv_heads},",
        f"    vocab_size={model.vocab_size},",
        "    # the feed-forward width is rounded up to a multiple of this: the width itself",
        f"    multiple_of={model.ffn_size},",
    ]
    if least > model.ffn_size:
        lines.append(f"    ffn_dim_multiplier={model.ffn_size / least / 2:.3f},")
    return "\n".join([*lines, ")"]) + "\n"


def _flavor(model: Model) -> str:
    """The flavor with exactly these shapes; empty where there is none."""
    shape = (
        model.num_layers,
        model.hidden_size,
        model.num_heads,
        model.num_kv_heads,
        model.ffn_size,
        model.vocab_size,
    )
    return _FLAVORS.get(shape, "")


def _training(job: BatchJob) -> dict[str, Any]:
    """Batch, sequence and precision. A pipeline takes all micro-batches of a step at once."""
    layout = job.layout
    at_once = layout.grad_accumulation if layout.pp > 1 else 1
    return {
        "local_batch_size": layout.micro_batch * at_once,
        "global_batch_size": layout.global_batch,
        "seq_len": job.workload.sequence_length,
        "steps": job.steps,
        "enable_cpu_offload": layout.offload == "all-cpu",
        "mixed_precision_param": _PRECISIONS[job.workload.precision],
    }


def _parallelism(job: BatchJob, head: str) -> dict[str, Any]:
    layout = job.layout
    replicate, shard = job.sharding
    table: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": _reshard(job),
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
    }
    if layout.pp > 1:
        table["pipeline_parallel_schedule"] = _SCHEDULES[layout.schedule]
        table["pipeline_parallel_microbatch_size"] = layout.micro_batch
        table["module_fqns_per_model_part"] = _chunks(job, head)
    return table


def _reshard(job: BatchJob) -> str:
    """When weights are sharded again: "default" leaves the head's gathered until its backward."""
    if not job.layout.shards_weights:
        return "never"
    return "always" if job.layout.pp > 1 else "default"


def _chunks(job: BatchJob, head: str) -> list[list[str]]:
    """Modules of every chunk, dealt as the estimate deals them: both ends weigh one layer."""
    number = job.layout.pp * job.layout.vpp
    chunks = []
    for chunk in range(number):
        first, count = layers_on_stage(job.model.num_layers, number, chunk, EndLayers(1, 1))
        chunks.append([f"layers.{layer}" for layer in range(int(first), int(first + count))])
    return [["tok_embeddings", *chunks[0]], *chunks[1:-1], [*chunks[-1], "norm", head]]


def _toml(job: BatchJob, flavor: str, tables: _Tables) -> File:
    """`torchtitan.toml`, for the releases that read it."""
    checkpointing: dict[str, str] = {"mode": job.layout.recompute}
    if job.layout.recompute == "selective":
        checkpointing["selective_ac_option"] = "op"
    model = {"name": "llama3", "flavor": flavor}
    text = toml_text(
        {"model": model, **tables, "activation_checkpoint": checkpointing},
        "torchtitan 0.2.2 and older; newer ones read no TOML",
    )
    return File("torchtitan.toml", "torchtitan's configuration up to release 0.2.2", text)


def _python(job: BatchJob, flavor: str, tables: _Tables) -> str:
    base = f"llama3_{flavor.lower()}"
    checkpointing = _CHECKPOINTING[job.layout.recompute]
    lines = [
        '"""torchtitan 0.3.0: python -m torchtitan.train --module torchtitan_plan --config plan"""',
        "",
    ]
    if checkpointing:
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {checkpointing}")
    lines += [
        f"from torchtitan.models.llama3.config_registry import {base}",
        "from torchtitan.trainer import Trainer",
        "",
        "",
        "def plan() -> Trainer.Config:",
        f"    config = {base}()",
    ]
    for section, table in tables.items():
        lines += [f"    config.{section}.{key} = {_literal(value)}" for key, value in table.items()]
    # the estimate counts eager kernels, and 0.3.0 refuses to capture a pipeline
    lines.append("    config.training.disable_cuda_graphs = True")
    kind = f"{checkpointing}.Config()" if checkpointing else "None"
    lines += [f"    config.activation_checkpoint = {kind}", "    return config"]
    return "\n".join(lines) + "\n"


def _literal(value: str | int | bool | list[list[str]]) -> str:
    return repr(value) if isinstance(value, (bool, int)) else json.dumps(value)
