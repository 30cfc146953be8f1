"""ezpz: wordplay's `key=value` settings, started by ezpz's launcher.

ezpz finds the job of PBS or Slurm by itself and calls its launcher with one process per device, as
is done at ALCF. wordplay trains the GPTs of nanoGPT.
"""

from __future__ import annotations

from collections.abc import Iterator

from planner.emitters.batch_job import CHECKPOINTS, BatchJob
from planner.emitters.limits import TORCH_DTYPES, ExpressibleLayouts, not_expressible
from planner.emitters.queue import slot_of
from planner.emitters.recipe import File, Recipe, Resume
from planner.emitters.recipes.ddp import EVALUATED_BATCHES, is_gpt2, is_plain
from planner.errors import EmitError, shorten

__all__ = ["EXPRESSIBLE", "recipe"]

EXPRESSIBLE = ExpressibleLayouts()
_SCHEDULERS = ("pbs", "slurm", "none")
"""Batch systems that ezpz knows; without one it calls `mpirun`."""
_CHARACTERS = 256
"""A vocabulary up to this size is of characters."""
_DONE = (
    "python3 -c 'import torch; "
    f'print(torch.load("{CHECKPOINTS}/ckpt.pt", map_location="cpu")["iter_num"])\''
)
"""Steps behind a checkpoint: wordplay counts `max_iters` from where it starts."""


def recipe(job: BatchJob) -> Recipe:
    """`wordplay.args` for wordplay's own program."""
    kind = job.machine.scheduler.kind
    if kind not in _SCHEDULERS:
        raise EmitError(
            f"ezpz does not know {kind}, which schedules {job.where}; use framework ddp, or a "
            f"machine with one of {', '.join(_SCHEDULERS)}"
        )
    if not is_gpt2(job) or not is_plain(job):
        raise not_expressible(
            f"model {shorten(job.model.name)!r}, or a setting of this job that nanoGPT has not,",
            "wordplay",
            "a GPT-2 without recompute, adapters and document_lengths, or framework ddp",
        )
    settings = "".join(f"{setting}\n" for setting in _settings(job))
    file = File("wordplay.args", "wordplay's settings, one a line", settings)
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
        variables=_variables(job),
        # its checkpoints hold more than tensors, which newer torch does not load unasked
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        saves=True,
        resume=Resume(
            f"{CHECKPOINTS}/ckpt.pt",
            ("train.init_from=resume", f'train.max_iters="$(({job.steps} - $({_DONE})))"'),
        ),
        notes=(
            "Install ezpz (`pip install git+https://github.com/saforem2/ezpz`) and wordplay from a "
            "checkout (`pip install -e .`), and make its data with the `prepare.py` beside it.",
            "ezpz binds the ranks to cores by its own list for the machine.",
            "wordplay saves beside an evaluation, whose time the estimate does not count.",
        ),
    )


def _variables(job: BatchJob) -> dict[str, str]:
    usual = "shakespeare" if job.model.vocab_size <= _CHARACTERS else "owt"
    return {
        "DATA": f"what wordplay calls the data, such as {usual}",
        "LEARNING_RATE": "the learning rate of your recipe, such as 6e-4",
        "WARMUP_STEPS": "the steps over which it warms up",
    }


def _settings(job: BatchJob) -> Iterator[str]:
    """What does not change from one job of a row to the next."""
    layout, model, workload = job.layout, job.model, job.workload
    interval = slot_of(job).save_every
    groups: dict[str, dict[str, object]] = {
        "model": {
            "n_layer": model.num_layers,
            "n_head": model.num_heads,
            "n_embd": model.hidden_size,
            "vocab_size": model.vocab_size,
            "block_size": workload.sequence_length,
            "batch_size": layout.micro_batch,
            "dropout": float(job.dropout),
            "bias": str(model.qkv_bias).lower(),
        },
        "optimizer": {"gas": layout.grad_accumulation, "lr_decay_iters": job.steps},
        "train": {
            "backend": "DDP",
            "dtype": TORCH_DTYPES[workload.precision],
            "compile": "false",
            "max_iters": job.steps,
            "log_interval": 1,
            "eval_interval": interval,
            "eval_iters": EVALUATED_BATCHES,
            "always_save_checkpoint": "true",
            "use_wandb": "false",
        },
        # wordplay works and saves in the folder of the run
        "hydra": {"run.dir": CHECKPOINTS},
    }
    for group, table in groups.items():
        yield from (f"{group}.{name}={value}" for name, value in table.items())
