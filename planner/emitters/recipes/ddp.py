"""DDP: the user's own program under torchrun; nanoGPT's options where the model is a GPT-2."""

from __future__ import annotations

from typing import Literal

from planner.describe.framework.support import SupportedModels
from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts
from planner.emitters.queue import slot_of
from planner.emitters.recipe import File, Recipe, Resume
from planner.emitters.text import arguments_text

__all__ = ["EVALUATED_BATCHES", "EXPRESSIBLE", "is_gpt2", "is_plain", "recipe"]

EXPRESSIBLE = ExpressibleLayouts()
EVALUATED_BATCHES = 10
"""Ours: the estimate counts no evaluation, and nanoGPT saves only beside one, of 200 by itself."""
_GPT2 = SupportedModels(
    positions=("learned",),
    norms=("layernorm", "layernorm-nobias"),
    feed_forwards=("gelu",),
    biases=("none", "all"),
    any_head_width=False,
)
"""What nanoGPT's `GPTConfig` builds, in sizes of GPT-2's proportions only."""


def recipe(job: BatchJob) -> Recipe:
    """`nanogpt.args` where nanoGPT can train the model, else what the program must do itself."""
    # a process that torchrun starts would wrap the model, and hold buckets for nobody
    launcher: Literal["torch", "none"] = "none" if job.layout.world == 1 else "torch"
    reads = f"Each rank takes {job.batches}, without a reduction in between (`no_sync`)."
    if not is_gpt2(job) or not is_plain(job):
        notes = ["`train.py` is your program on `DistributedDataParallel`.", reads]
        if job.layout.recompute == "full":
            notes.append("It recomputes every layer (`torch.utils.checkpoint`).")
        if launcher == "none":
            notes[0] = "`train.py` is your program: it is the only process, and wraps nothing."
        return Recipe(files=(), launcher=launcher, notes=tuple(notes))
    options = File("nanogpt.args", "the options of nanoGPT, one a line", _nanogpt(job))
    return Recipe(
        files=(options,),
        argument_files=(options.name,),
        launcher=launcher,
        arguments=('--learning_rate="${LEARNING_RATE}"', '--warmup_iters="${WARMUP_STEPS}"'),
        variables={
            "LEARNING_RATE": "the learning rate of your recipe, such as 6e-4",
            "WARMUP_STEPS": "the steps over which it warms up",
        },
        needed={
            "configurator.py": "nanoGPT reads it and data/ where it runs: link both from its "
            "checkout into this folder, and set PROGRAM to the train.py there"
        },
        saves=True,
        resume=Resume(f"{CHECKPOINTS}/ckpt.pt", ("--init_from=resume",)),
        notes=(
            "The program is nanoGPT's `train.py`, which reads `configurator.py` and `data/` where "
            "it runs: `ln -s CHECKOUT/configurator.py CHECKOUT/data .`, then set PROGRAM to "
            "`CHECKOUT/train.py`. It divides the accumulation by the ranks itself.",
            reads,
            "The data is what its `dataset` names, under `data/`. It saves beside an evaluation, "
            "whose time the estimate does not count.",
        ),
    )


def is_gpt2(job: BatchJob) -> bool:
    """Whether the model is one that nanoGPT builds."""
    model = job.model
    return (
        not _GPT2.lacks(model, job.workload.sequence_length)
        and model.tied_embeddings
        and model.num_kv_heads == model.num_heads
        and model.ffn_size == 4 * model.hidden_size
    )


def is_plain(job: BatchJob) -> bool:
    """Whether nanoGPT has every setting of the job."""
    workload = job.workload
    return (
        job.layout.recompute == "none"
        and workload.precision in TORCH_DTYPES
        and not workload.adapted
        and not workload.document_lengths
    )


def _nanogpt(job: BatchJob) -> str:
    """nanoGPT's `--name=value` options."""
    layout, model, workload = job.layout, job.model, job.workload
    values = {
        "batch_size": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_accumulation * layout.dp,
        "block_size": workload.sequence_length,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_embd": model.hidden_size,
        "dropout": float(job.dropout),
        "bias": model.qkv_bias,
        "dtype": TORCH_DTYPES[workload.precision],
        "compile": False,
        "max_iters": job.steps,
        "lr_decay_iters": job.steps,
        "out_dir": CHECKPOINTS,
        "eval_interval": slot_of(job).save_every,
        "eval_iters": EVALUATED_BATCHES,
        "always_save_checkpoint": True,
        "log_interval": 1,
    }
    return arguments_text(f"--{name}={value}" for name, value in values.items())
