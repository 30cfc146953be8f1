"""DDP: the user's own program under torchrun; nanoGPT's options if the model is a GPT-2."""

from typing import Literal

from planner.describe.framework.support import SupportedModels
from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts
from planner.emitters.recipe import Page, Recipe, Resume

EXPRESSIBLE = ExpressibleLayouts()
EVALUATED_BATCHES = 10
"""Ours; nanoGPT, which takes 200, saves only after an evaluation. Estimates leave those out."""
_GPT2 = SupportedModels(
    positions=("learned",),
    norms=("layernorm", "layernorm-nobias"),
    feed_forwards=("gelu",),
    biases=("none", "all"),
    any_head_width=False,
)
"""Models that nanoGPT's `GPTConfig` builds; GPT-2's proportions of sizes only."""
LEARNING = {
    "LEARNING_RATE": "the learning rate of your recipe, such as 6e-4",
    "WARMUP_STEPS": "the steps over which it warms up",
}
"""Variables that a user of nanoGPT sets."""


def recipe(job: BatchJob) -> Recipe:
    """Write `nanogpt.args` if nanoGPT can train the model, else notes for the user's program."""
    # under torchrun a single process would wrap the model in DDP, with useless buckets
    launcher: Literal["torch", "none"] = "none" if job.layout.world == 1 else "torch"
    page = Page("ddp", job, nanogpt=runs_nanogpt(job))
    if not runs_nanogpt(job):
        return Recipe(files=(), launcher=launcher, notes=page.notes())
    page.values |= {
        "dtype": TORCH_DTYPES[job.workload.precision],
        "save_every": job.slot.save_every,
        "evaluated_batches": EVALUATED_BATCHES,
    }
    options = page.file("nanogpt.args", "the options of nanoGPT, one per line")
    return Recipe(
        files=(options,),
        argument_files=(options.name,),
        launcher=launcher,
        arguments=('--learning_rate="${LEARNING_RATE}"', '--warmup_iters="${WARMUP_STEPS}"'),
        variables=LEARNING,
        needed={
            "configurator.py": "nanoGPT reads it and data/ where it runs: link both from its "
            "checkout into this folder, and set PROGRAM to the train.py there"
        },
        saves=True,
        resume=Resume(f"{CHECKPOINTS}/ckpt.pt", ("--init_from=resume",)),
        notes=page.notes(),
    )


def runs_nanogpt(job: BatchJob) -> bool:
    """Whether nanoGPT builds the model and supports every setting of the job."""
    model, workload = job.model, job.workload
    return (
        not _GPT2.lacks(model, workload.sequence_length)
        and model.tied_embeddings
        and model.num_kv_heads == model.num_heads
        and model.ffn_size == 4 * model.hidden_size
        and job.layout.recompute == "none"
        and workload.precision in TORCH_DTYPES
        and not workload.adapted
        and not workload.document_lengths
    )
