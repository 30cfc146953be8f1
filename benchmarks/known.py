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
    (
        "OpenEuroLLM",
        "sustained_fraction of JUPITER's GH200 of 680 W (odd bf16 rows of 1.8B)",
        lambda r: r.row_id in ("JUPITER001", "JUPITER005", "JUPITER007"),
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


# Causes of errors of memory above 15 %, by source; the figures were checked by hand.
MEMORY_CAUSES = (
    (
        "BigScience tr8",
        lambda r: r.layout.pp > r.model.num_layers,
        "the source contradicts itself: 64 stages of 32 layers, and a model that its authors call "
        "58B in truth, while the stated shape has 104B",
    ),
    (
        "BigScience tr8",
        lambda r: r.workload.optimizer == "adam-8bit",
        "not known: with 8-bit moments the same layout takes 3 GB less by the source (30 and 27), "
        "6 bytes a parameter would be 4.9 GB",
    ),
    (
        "BigScience gpt2",
        lambda r: True,
        "equal layouts are printed with 26 to 32 GB; memory does not depend on the number of "
        "micro-batches with one pipeline schedule (marked low)",
    ),
    (
        "ColossalAI",
        lambda r: r.layout.pp == 1 and r.model.num_params > 5e10,
        "the source contradicts itself: 146.5 GiB on a device of 141 GB; with ZeRO-2 the 16-bit "
        "weights alone are 128.6 GiB",
    ),
    (
        "ColossalAI",
        lambda r: r.layout.pp == 1,
        "the source contradicts itself: zero1(dp2)+tp2+pp4 needs 16 devices and the row has 8",
    ),
    (
        "ColossalAI",
        lambda r: True,
        "recompute is not stated: weights, gradients and states are 81.0 GiB of the 97.7, so that "
        "16.7 are left for activations, which without recompute take 79.1",
    ),
    (
        "ml-engineering H200 vs B200",
        lambda r: r.workload.sequence_length <= 32768,
        "a peak of the start: benchmark.py @380e078a builds the model without zero.Init, so that "
        "deepspeed.initialize puts all 16-bit weights (15.0 GiB) on each device before it splits "
        "them, and never resets max_memory_reserved; from 64 K tokens on the step is larger",
    ),
    (
        "torchtitan",
        lambda r: r.layout.tp == 1,
        "not known: 4.3 GiB of the difference go with the parameters of a rank (rows of 8 and 128 "
        "GPUs), 4.6 bytes each, as if AdamW's temporaries stayed reserved; the rest is one 16-bit "
        "copy of the logits (2 s V = 7.8 GiB)",
    ),
    (
        "torchtitan",
        lambda r: True,
        "not known: 11.6 GiB, of which asynchronous tensor parallelism saves 4.3, two unsplit "
        "residual streams (2 s b h each)",
    ),
    (
        "ultrascale",
        lambda r: r.row_id == "U01875",
        "the table contradicts itself: 25.6 GiB, where half the micro-batch takes 48.6 (U01869)",
    ),
    (
        "ultrascale",
        lambda r: not r.framework.kernels.saves_gathered and r.layout.tp > 8,
        "not known: up to 2 h bytes a token and layer more than the build that gathers again, as "
        "if one of the two gathered inputs of a layer were kept",
    ),
)


def doubtful(run: Run) -> bool:
    """True if a row cannot be right as its table states it: NVIDIA's BERT-Large with 512 tokens
    trains on sequences padded to bins of 64 tokens (NVIDIA/DeepLearningExamples @729963dd,
    PyTorch/LanguageModeling/BERT/README.md), and no table states their length."""
    return "BERT-Large" in run.source and run.workload.sequence_length == 512


def cause(run: Run) -> str:
    """Return the known cause of a run's large error of step time."""
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


def memory_cause(run: Run) -> str:
    """Return the cause of a run's large error of memory, as far as it is known."""
    found = (text for source, holds, text in MEMORY_CAUSES if source in run.source and holds(run))
    return next(found, "not known")


def fitted(run: Run) -> str:
    """Return the constant that was fitted on a run; empty if none was."""
    for source, what, holds in FITTED:
        if source in run.source and holds(run):
            return what
    return ""
