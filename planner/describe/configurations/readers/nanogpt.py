"""nanoGPT: its options or Python file, and wordplay's `group.name=value` settings (ezpz)."""

from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.stated_job import DTYPES, KEYS, Reader, StatedJob

_MARKS = ("batch_size", "block_size")
_WORDPLAY_MARKS = ("n_layer", "n_embd", *_MARKS)
_SHAPE = {"num_layers": "n_layer", "hidden_size": "n_embd", "num_heads": "n_head"}


def _read_gpt_flags(job: StatedJob, flags: Table) -> None:
    job.layout(zero_stage=0, micro_batch=flags.number("batch_size"))
    job.workload(sequence_length=flags.number("block_size"), dropout=flags.real("dropout"))
    job.shape(**flags.numbers(_SHAPE))


def _compiles(job: StatedJob, flags: Table) -> None:
    """Turn on `compile` unless it is disabled; both programs compile by default."""
    if flags.flag("compile") is not False:
        job.turn_on("compile")


def _flags(document: Document) -> Table:
    if all(mark in document.tables for mark in _MARKS):
        return document.table()
    return document.python_arguments()


def _is_nanogpt(document: Document) -> bool:
    flags = _flags(document)
    # wordplay has the same keys, in groups
    return all(mark in flags for mark in _MARKS) and not document.settings


def _nanogpt(job: StatedJob, flags: Table) -> None:
    """Read nanoGPT's options; its gradient accumulation counts micro-batches of all ranks."""
    _read_gpt_flags(job, flags)
    micro = flags.number("batch_size")
    passes = flags.number("gradient_accumulation_steps") or 40  # default of train.py
    if micro is not None:
        job.workload(global_batch=micro * passes)
    job.workload(precision=job.named(flags, "dtype", DTYPES, "precision") or "bf16")
    _compiles(job, flags)


def _is_wordplay(document: Document) -> bool:
    model = document.settings.get("model")
    return isinstance(model, dict) and any(mark in model for mark in _WORDPLAY_MARKS)


def _wordplay(job: StatedJob, settings: Table) -> None:
    """Read wordplay's settings; unset ones keep wordplay's defaults, which its files may change."""
    model, optimizer, train = (settings.table(name) for name in ("model", "optimizer", "train"))
    job.named(train, "backend", {"ddp": "ddp"})
    _read_gpt_flags(job, model)
    job.layout(grad_accumulation=optimizer.number("gas"))
    job.workload(precision=job.named(train, "dtype", DTYPES, "precision"))
    job.by_default(precision="bf16", grad_accumulation=1)
    _compiles(job, train)


_HARMLESS = KEYS["nanogpt"]["harmless"]
NANOGPT = Reader("options of nanoGPT", _is_nanogpt, _nanogpt, "ddp", _flags, harmless=_HARMLESS)
WORDPLAY = Reader(
    "settings of wordplay",
    _is_wordplay,
    _wordplay,
    "ezpz",
    lambda d: Table(d.settings, d.name),
    harmless=_HARMLESS,
)
