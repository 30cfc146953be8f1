"""torchtitan: a TOML file for releases up to 0.2.2 and a Python configuration for 0.3.0.

0.3.0 reads no TOML any more: it takes a function that returns a configuration.
"""

from __future__ import annotations

from typing import Any

from planner.emit import fully_shard
from planner.emit.run import Recipe, Run
from planner.emit.syntax import scalar, toml_text
from planner.errors import EmitError
from planner.model import Model

__all__ = ["recipe"]

_FLAVORS = {
    (32, 4096, 32, 8, 14336, 128256): "8B",
    (80, 8192, 64, 8, 28672, 128256): "70B",
    (126, 16384, 128, 8, 53248, 128256): "405B",
}
"""Shapes (layers, width, heads, key-value heads, feed-forward, vocabulary) that both releases know
as flavors of their module llama3."""
_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved-1f1b": "Interleaved1F1B"}
_MODE = {"none": "none", "selective": "selective", "full": "full"}
_CHECKPOINTING = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
_ENDS = 2
"""Embedding and head, which weigh one layer each when layers are dealt to stages."""


def recipe(run: Run) -> Recipe:
    """`torchtitan.toml` and `torchtitan_plan.py`; FSDP2 alone for models it does not know."""
    flavor = _flavor(run.model)
    if not flavor:
        return fully_shard.recipe(run)
    _check(run)
    tables = {"training": _training(run), "parallelism": _parallelism(run)}
    return Recipe(
        files={
            "torchtitan.toml": _toml(run, flavor, tables),
            "torchtitan_plan.py": _python(run, flavor, tables),
        },
        program="-m torchtitan.train",
        default_program="",
        arguments=("--module torchtitan_plan", "--config plan"),
        notes=(
            "`job.sh` starts torchtitan 0.3.0 with `torchtitan_plan.py`. For 0.2.2 and older, "
            "replace `--module torchtitan_plan --config plan` there by `--job.config_file "
            "torchtitan.toml`.",
            "The tokenizer comes from `hf_assets_path`, which you download first; the learning "
            "rate, data and checkpoints are torchtitan's defaults for this model.",
        ),
    )


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
    llama = model.norm == "rmsnorm" and model.gated_mlp and model.position == "rope"
    plain = not (model.experts or model.tied_embeddings or model.qkv_bias)
    return _FLAVORS.get(shape, "") if llama and plain else ""


def _check(run: Run) -> None:
    layout, precision = run.layout, run.workload.precision
    if layout.pp > 1 and layout.schedule not in _SCHEDULES:
        raise EmitError(
            f"schedule {layout.schedule} is not written for torchtitan, whose zero-bubble "
            "schedules hold two chunks a stage; use 1f1b, gpipe or interleaved-1f1b"
        )
    if precision not in ("bf16", "fp32", "tf32"):
        raise EmitError(f"precision {precision} is not written for torchtitan; use bf16 or fp32")


def _training(run: Run) -> dict[str, Any]:
    """Batch, sequence and precision. A pipeline takes all micro-batches of a step at once."""
    layout = run.layout
    at_once = layout.grad_accumulation if layout.pp > 1 else 1
    return {
        "local_batch_size": layout.micro_batch * at_once,
        "global_batch_size": layout.global_batch,
        "seq_len": run.workload.sequence_length,
        "steps": run.steps,
        "enable_cpu_offload": layout.offload == "all-cpu",
        "mixed_precision_param": "bfloat16" if run.workload.precision == "bf16" else "float32",
    }


def _parallelism(run: Run) -> dict[str, Any]:
    layout = run.layout
    shard = (layout.dp_shard or layout.dp) if layout.zero_stage else 1
    table: dict[str, Any] = {
        "data_parallel_replicate_degree": layout.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if layout.zero_stage == 3 else "never",
        "tensor_parallel_degree": layout.tp,
        "pipeline_parallel_degree": layout.pp,
        "context_parallel_degree": layout.cp,
        "expert_parallel_degree": layout.ep,
    }
    if layout.pp > 1:
        table["pipeline_parallel_schedule"] = _SCHEDULES[layout.schedule]
        table["pipeline_parallel_microbatch_size"] = layout.micro_batch
    if layout.vpp > 1:
        table["pipeline_parallel_layers_per_stage"] = _layers_per_stage(run)
    return table


def _layers_per_stage(run: Run) -> int:
    """Layers of a chunk from which torchtitan derives the number of chunks."""
    chunks = run.layout.pp * run.layout.vpp
    weight = run.model.num_layers + _ENDS
    layers = -(-weight // chunks)
    if -(-weight // layers) != chunks:
        raise EmitError(
            f"{run.model.num_layers} layers do not make {chunks} chunks in torchtitan, which "
            "counts layers per chunk; use a layout with other vpp"
        )
    return layers


def _toml(run: Run, flavor: str, tables: dict[str, dict[str, Any]]) -> str:
    mode = {"mode": _MODE[run.layout.recompute]}
    if mode["mode"] == "selective":
        mode["selective_ac_option"] = "op"
    return "# torchtitan 0.2.2 and older; newer ones read torchtitan_plan.py\n\n" + toml_text(
        {
            "model": {"name": "llama3", "flavor": flavor},
            **tables,
            "activation_checkpoint": mode,
        }
    )


def _python(run: Run, flavor: str, tables: dict[str, dict[str, Any]]) -> str:
    base = f"llama3_{flavor.lower()}"
    checkpointing = _CHECKPOINTING[run.layout.recompute]
    lines = [
        '"""torchtitan 0.3.0: python -m torchtitan.train --module torchtitan_plan --config plan"""',
        "",
    ]
    if checkpointing != "None":
        kind = checkpointing.partition(".")[0]
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {kind}")
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
    lines += [f"    config.activation_checkpoint = {checkpointing}", "    return config"]
    return "\n".join(lines) + "\n"


def _literal(value: str | int | bool) -> str:
    return repr(value) if isinstance(value, (bool, int)) else scalar(value)
