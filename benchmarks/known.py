"""Known facts about measured runs: fitted constants, and causes of large errors."""

from __future__ import annotations

import functools
from pathlib import Path

from pydantic import Field

from planner.describe.base import Description
from planner.describe.files import read_toml
from planner.evidence.runs.run import Run


class Reason(Description):
    """Why rows of a source are far off."""

    source: str
    """Name of the source, or its beginning."""
    rows: tuple[str, ...] = ()
    """The rows; empty: all rows of the source."""
    text: str = Field(min_length=10)


class Scoring(Description):
    """What sets one scoring of the rows apart from the others."""

    version: str
    """Version as in the ledger."""
    text: str = Field(min_length=10)


class Remarks(Description):
    """Contents of `blind.toml`."""

    scorings: tuple[Scoring, ...]
    reasons: tuple[Reason, ...]


def _even(run: Run) -> bool:
    return int(run.row_id.removeprefix("R")) % 2 == 0


_BLACKWELL = ("dgx-b200", "dgx-gb200", "dgx-gb300")

# Rows that a constant was fitted on: source, the fitted constant, and how to recognize the rows.
FITTED = (
    (
        "Narayanan et al. 2021",
        "ZeRO-3 of 2021 (three rows)",
        lambda r: r.row_id in ("R00011", "R00012", "R00013"),
    ),
    ("vTrain", "sustained_fraction of A100 (every second row)", lambda r: _even(r)),
    (
        "llm-foundry",
        "sustained_fraction of A100 and its attention rate (every second row)",
        lambda r: _even(r),
    ),
    (
        "ultrascale",
        "host time of nanotron and sustained_fraction (1B rows)",
        lambda r: r.model.num_params < 3e9,
    ),
    ("tr11", "rate of unaligned heads (heads of 150)", lambda r: r.model.head_dim == 150),
    (
        "tr11",
        "network of Jean Zay's A100 nodes (every second row)",
        lambda r: not r.guessed and int(r.row_id.removeprefix("R")) % 2 == 0,
    ),
    (
        "Megatron-LM 2020",
        "sustained_fraction of the DGX-2's V100 (tp 1 and 2)",
        lambda r: r.machine.name == "dgx-2" and r.layout.tp <= 2,
    ),
    (
        "Megatron-Bridge",
        "sustained_fraction of Blackwell (dense rows)",
        lambda r: r.model.experts is None and r.machine.name in _BLACKWELL,
    ),
    (
        "AMP",
        "sustained_fraction and links of T4 (every second row)",
        lambda r: int(r.row_id.removeprefix("amp-")) % 2 == 0,
    ),
    (
        "DeepLearningExamples ResNet-50",
        "convolution_fraction (every second row: fp16)",
        lambda r: _even(r),
    ),
    (
        "ml-engineering torch.compile",
        "dispatch_ratio of eager PyTorch",
        lambda r: r.row_id == "R03310",
    ),
    (
        "SimuMax v1.2, NVIDIA A100",
        "sustained_fraction and links of A100-PCIe (12 layers of Llama 3 70B)",
        lambda r: r.row_id.startswith("llama3-70b"),
    ),
    (
        "LUMI 175B",
        "sustained_fraction of MI250X (every second row)",
        lambda r: r.row_id in ("R02892", "R02894"),
    ),
    (
        "AuroraGPT-70B",
        "sustained_fraction, links and gathers of PVC (every second row)",
        lambda r: r.row_id != "R02901" and _even(r),
    ),
    ("AuroraGPT-2B", "reductions and links of Aurora (its log)", lambda r: True),
    (
        "torchtitan",
        "traffic that asynchronous tensor parallelism hides (8B, bf16)",
        lambda r: r.row_id in ("R00669", "R00670"),
    ),
    ("torchtitan", "uneven context parallelism", lambda r: r.layout.cp > 1),
    (
        "torchtitan",
        "sustained_fraction of the 500 W H100 (bf16 rows)",
        lambda r: r.workload.precision == "bf16" and r.machine.name == "grand-teton",
    ),
)


# Known causes of large errors of a source, or of a part of it.
CAUSES = (
    (
        "ultrascale",
        lambda r: r.layout.pp > 1,
        "stalls of about 1 s per micro-batch, not foretold (see below)",
    ),
    ("ultrascale", lambda r: True, "close to the memory limit, or collectives of a slow network"),
    ("AuroraGPT-70B", lambda r: True, "a copy slip of the source, by its own other rows"),
    (
        "BERT-Large",
        lambda r: r.workload.sequence_length == 512,
        "its sequences are padded to bins of 64 tokens and not to 512 (its README: LDDL); the rows "
        "with 128 tokens, which are not binned, are 1 to 9 % off",
    ),
    (
        "SimuMax v1.2, NVIDIA A100 80GB PCIe",
        lambda r: r.layout.ep == 8,
        "tokens of eight ranks cross the sockets more often than a ring does",
    ),
    (
        "BigScience gpt2",
        lambda r: True,
        "two modes: equal layouts take 125 or 217 s, +-40 % by the authors (marked low)",
    ),
    ("Megatron-Bridge", lambda r: r.layout.ep > 1, "overhead of routing tokens to experts"),
)


def doubtful(run: Run) -> bool:
    """True if a row cannot be right as its table states it: NVIDIA's BERT-Large with 512 tokens
    trains on sequences padded to bins of 64 tokens (NVIDIA/DeepLearningExamples @729963dd,
    PyTorch/LanguageModeling/BERT/README.md), and no table states their length."""
    return "BERT-Large" in run.source and run.workload.sequence_length == 512


def cause(run: Run) -> str:
    """Return the known cause of a run's large error; empty if unknown."""
    found = (text for source, holds, text in CAUSES if source in run.source and holds(run))
    return next(found, None) or reason(run.source, run.row_id)


@functools.cache
def remarks() -> Remarks:
    """Read what is known of scorings and of rows that were far off."""
    path = Path(__file__).with_name("blind.toml")
    return Remarks.described(read_toml(path), where=path.name)


def reason(source: str, row: str) -> str:
    """Return why a row of benchmarks/evidence is far off; "not known" if nobody knows."""
    found = (
        item.text
        for item in remarks().reasons
        if source.startswith(item.source) and (not item.rows or row in item.rows)
    )
    return next(found, "not known")


def fitted(run: Run) -> str:
    """Return the constant that was fitted on a run; empty if none was."""
    for source, what, holds in FITTED:
        if source in run.source and holds(run):
            return what
    return ""
