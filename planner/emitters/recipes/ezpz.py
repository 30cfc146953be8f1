"""ezpz: wordplay's `key=value` settings, started by ezpz's launcher."""

from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, not_expressible
from planner.emitters.recipe import Page, Recipe, Resume
from planner.emitters.recipes.ddp import EVALUATED_BATCHES, LEARNING, runs_nanogpt
from planner.errors import EmitError, shorten

EXPRESSIBLE = ExpressibleLayouts()
_SCHEDULERS = ("pbs", "slurm", "none")
"""Batch systems that ezpz knows; without one it calls `mpirun`."""
_CHARACTERS = 256
"""Largest vocabulary that is taken as one of characters."""
_DONE = (
    "python3 -c 'import torch; "
    f'print(torch.load("{CHECKPOINTS}/ckpt.pt", map_location="cpu")["iter_num"])\''
)
"""Shell command for a checkpoint's step: wordplay counts `max_iters` from where it resumes."""


def recipe(job: BatchJob) -> Recipe:
    """Write `wordplay.args` for wordplay's own program."""
    _check(job)
    page = Page(
        "ezpz",
        job,
        dtype=TORCH_DTYPES[job.workload.precision],
        save_every=job.slot.save_every,
        evaluated_batches=EVALUATED_BATCHES,
    )
    file = page.file("wordplay.args", "wordplay's settings, one per line")
    data = "shakespeare" if job.model.vocab_size <= _CHARACTERS else "owt"
    return Recipe(
        files=(file,),
        program="-m wordplay",
        default_program="",
        arguments=(
            'data="${DATA}"',
            'optimizer.learning_rate="${LEARNING_RATE}"',
            'train.warmup_iters="${WARMUP_STEPS}"',
            f'data.out_dir="${{PWD}}/{CHECKPOINTS}"',
        ),
        argument_files=(file.name,),
        launcher="ezpz",
        variables={"DATA": f"the name of the data in wordplay, such as {data}", **LEARNING},
        # its checkpoints hold more than tensors, which newer torch does not load by default
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        saves=True,
        resume=Resume(
            f"{CHECKPOINTS}/ckpt.pt",
            ("train.init_from=resume", f'train.max_iters="$(({job.steps} - $({_DONE})))"'),
        ),
        notes=page.notes(),
    )


def _check(job: BatchJob) -> None:
    """Raise EmitError if ezpz lacks the batch system or wordplay cannot train the model."""
    kind = job.machine.scheduler.kind
    if kind not in _SCHEDULERS:
        raise EmitError(
            f"ezpz does not support {kind}, the scheduler of {job.where}; use framework ddp, or a "
            f"machine with one of {', '.join(_SCHEDULERS)}"
        )
    if not runs_nanogpt(job):
        raise not_expressible(
            f"model {shorten(job.model.name)!r}, or a setting of this job that nanoGPT lacks,",
            "wordplay",
            "a GPT-2 without recompute, adapters and document_lengths, or framework ddp",
        )
