"""DDP: the user's own program under torchrun; nanoGPT's options where the model is a GPT-2."""

from __future__ import annotations

from planner.describe.model.model import Model
from planner.emitters.job import Recipe, Run
from planner.emitters.recipes.megatron import lines

__all__ = ["recipe"]

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}


def recipe(run: Run) -> Recipe:
    """`nanogpt.args` where nanoGPT can train the model, else what the program must do itself."""
    layout = run.layout
    batch = (
        f"Each rank takes batches of {layout.micro_batch} sequences and steps after "
        f"{layout.grad_accumulation} of them, without a reduction in between (`no_sync`)."
    )
    if not _is_gpt2(run.model) or not _is_plain(run):
        notes = ["`train.py` is your program on `DistributedDataParallel`.", batch]
        if layout.recompute == "full":
            notes.append("It recomputes every layer (`torch.utils.checkpoint`).")
        return Recipe(files={}, notes=tuple(notes))
    return Recipe(
        files={"nanogpt.args": _nanogpt(run)},
        argument_files=("nanogpt.args",),
        notes=(
            "`train.py` is nanoGPT's (or wordplay's of that form): run from its checkout, or set "
            "PROGRAM to its path. It divides the accumulation by the ranks itself.",
            batch,
        ),
    )


def _is_gpt2(model: Model) -> bool:
    return (
        model.kind == "decoder"
        and model.position == "learned"
        and not model.gated_mlp
        and model.activation == "gelu"
        and model.tied_embeddings
        and model.num_kv_heads == model.num_heads
        and model.ffn_size == 4 * model.hidden_size
        and model.qkv_bias == model.out_bias == model.mlp_bias
        and not model.embedding_norm
        and not model.parallel_residual
        and model.experts is None
    )


def _is_plain(run: Run) -> bool:
    """Whether nanoGPT has every setting of the job."""
    workload = run.workload
    adapted = workload.lora_rank or workload.frozen
    return run.layout.recompute == "none" and workload.precision in _DTYPES and not adapted


def _nanogpt(run: Run) -> str:
    """nanoGPT's `--name=value` options."""
    layout, model, workload = run.layout, run.model, run.workload
    dropout = model.dropout if workload.dropout is None else workload.dropout
    values = {
        "batch_size": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_accumulation * layout.dp,
        "block_size": workload.sequence_length,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_embd": model.hidden_size,
        "dropout": float(dropout),
        "bias": model.qkv_bias,
        "dtype": _DTYPES[workload.precision],
        "compile": False,
        "max_iters": run.steps,
        "log_interval": 1,
    }
    return lines([f"--{name}={value}" for name, value in values.items()])
