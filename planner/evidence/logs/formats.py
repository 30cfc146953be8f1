"""Log formats: what the training loops of the common frameworks print, as data.

A format is a pattern that marks the line of a step and patterns of the figures on that line.
Facts (memory, ranks, batch) may stand on any line of any format: a Megatron-DeepSpeed log holds
lines of both. Figures are brought to SI units here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["FACTS", "FORMATS", "Format", "Pick", "number"]

_NUMBER = r"([+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|-?inf)"
_HUMAN = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_MIB, _GIB = 2.0**20, 2.0**30


def number(text: str) -> float:
    """A printed number; thousands separators are dropped.

    >>> number("5,762"), number("1.2e3")
    (5762.0, 1200.0)
    """
    return float(text.replace(",", ""))


@dataclass(frozen=True, slots=True)
class Pick:
    """Where a figure stands and what turns it into SI units."""

    pattern: re.Pattern[str]
    scale: float = 1.0
    human: bool = False
    """Whether a decimal prefix may follow the number, as in 43.2K."""
    convert: Callable[[float], float] | None = None

    def find(self, line: str) -> float | None:
        """The figure on a line, or None."""
        match = self.pattern.search(line)
        if match is None:
            return None
        value = number(match[1]) * self.scale
        if self.human:
            value *= _HUMAN[(match[2] or "").upper()]
        return self.convert(value) if self.convert else value


def _pick(before: str, scale: float = 1.0, *, human: bool = False) -> Pick:
    after = r"\s?([KkMGBT]?)(?![A-Za-z])" if human else ""
    return Pick(re.compile(before + r"\s*'?" + _NUMBER + after, re.IGNORECASE), scale, human)


def _rate_to_time(rate: float) -> float:
    return 1 / rate if rate > 0 else float("nan")


def _inverse(before: str) -> Pick:
    return Pick(re.compile(before + r"\s*'?" + _NUMBER), convert=_rate_to_time)


@dataclass(frozen=True, slots=True)
class Format:
    """One framework's step line. Fields: see `planner.evidence.logs.read.Step`."""

    name: str
    title: str
    framework: str
    """Catalogue name of the framework that prints it."""
    marks: re.Pattern[str]
    picks: dict[str, Pick] = field(default_factory=dict)
    note: str = ""


FORMATS: tuple[Format, ...] = (
    Format(
        "wordplay",
        "wordplay / ezpz",
        "ddp",
        re.compile(r"(?=.*\b(?:step|iter)=\d+\b)(?=.*\bloss=).*\bdt="),
        {
            "step": _pick(r"\b(?:step|iter)="),
            "loss": _pick(r"\bloss="),
            "time_s": _pick(r"\bdt="),
            "tokens_per_s": _pick(r"\btps="),
            "tokens_per_s_per_device": _pick(r"\btps_per_gpu="),
            "mfu": _pick(r"\bmfu=", 0.01),
        },
        note="mfu is a running mean against the peak that the program assumes",
    ),
    Format(
        "nanogpt",
        "nanoGPT",
        "ddp",
        re.compile(r"\biter \d+: loss .*time [\d.]+ms"),
        {
            "step": _pick(r"\biter "),
            "loss": _pick(r"\bloss "),
            "time_s": _pick(r"\btime ", 1e-3),
            "mfu": _pick(r"\bmfu ", 0.01),
        },
        note="mfu is a running mean against 312 TFLOP/s, whatever the device",
    ),
    Format(
        "nanotron",
        "nanotron",
        "nanotron",
        re.compile(r"\biteration: \d+ / \d+ \|.*elapsed_time_per_iteration_ms"),
        {
            "step": _pick(r"\biteration: "),
            "loss": _pick(r"\blm_loss: "),
            "time_s": _pick(r"\belapsed_time_per_iteration_ms: ", 1e-3, human=True),
            "tokens_per_s": _pick(r"\btokens_per_sec: ", human=True),
            "tokens_per_s_per_device": _pick(r"\btokens_per_sec_per_gpu: ", human=True),
            "flop_per_s_per_device": _pick(r"\bmodel_tflops_per_gpu: ", 1e12, human=True),
            "global_batch": _pick(r"\bglobal_batch_size: ", human=True),
        },
        note="figures are printed with three digits",
    ),
    Format(
        "megatron",
        "Megatron-LM / Megatron-DeepSpeed",
        "megatron-lm",
        re.compile(r"\biteration\s*[= ]\s*\d+/.*elapsed[ _]time[ _]per[ _]iteration"),
        {
            "step": _pick(r"\biteration\s*=?"),
            "loss": _pick(r"\blm[ _]loss[:=]"),
            "time_s": _pick(r"elapsed[ _]time[ _]per[ _]iteration(?: \(ms\):|_ms=)", 1e-3),
            "tokens_per_s_per_device": _pick(
                r"(?:tokens per gpu(?: per second)? \((?:tgs|tokens/s/GPU)\):"
                r"|tokens_per_gpu_per_second_tgs=)"
            ),
            "flop_per_s_per_device": _pick(
                r"(?:throughput per GPU \(TFLOP/s/GPU\):|\bTFLOPs[:=])", 1e12
            ),
            "global_batch": _pick(r"global[ _]batch[ _]size[:=]"),
        },
    ),
    Format(
        "torchtitan",
        "torchtitan",
        "fsdp2",
        re.compile(r"(?<!validate )\bstep:\s*\d+.*\bloss:.*\btps:"),
        {
            "step": _pick(r"\bstep:"),
            "loss": _pick(r"\bloss:"),
            "tokens_per_s_per_device": _pick(r"\btps:"),
            "flop_per_s_per_device": _pick(r"\btflops:", 1e12),
            "mfu": _pick(r"\bmfu:", 0.01),
            "reserved_bytes": _pick(r"\bmemory:", _GIB),
        },
        note="tokens/s is the mean since the line before",
    ),
    Format(
        "deepspeed",
        "DeepSpeed",
        "deepspeed",
        re.compile(r"SamplesPerSec=|iter time \(s\):|time \(ms\) \| fwd: "),
        {
            "step": _pick(r"(?:global_step=|\bsteps: |stop\] \d+/)"),
            "loss": _pick(r"\bloss: "),
            "time_s": _pick(r"iter time \(s\):"),
            "samples_per_s": _pick(
                r"(?:CurrSamplesPerSec=|(?<![A-Za-z])SamplesPerSec="
                r"|samples/sec:)"
            ),
            "mean_samples_per_s": _pick(r"RunningAvgSamplesPerSec="),
            "forward_s": _pick(r"\| fwd:", 1e-3),
            "backward_s": _pick(r"\| bwd:", 1e-3),
            "backward_reduce_s": _pick(r"\| bwd_allreduce:", 1e-3),
            "optimizer_s": _pick(r"\| step:", 1e-3),
            "allocated_bytes": _pick(r"MaxMemAllocated=", _GIB),
        },
    ),
    Format(
        "huggingface",
        "Hugging Face Trainer",
        "accelerate",
        re.compile(r"['\"]?train_steps_per_second['\"]?\s*[:=]"),
        {
            "time_s": _inverse(r"['\"]?train_steps_per_second['\"]?\s*[:=]"),
            "samples_per_s": _pick(r"['\"]?train_samples_per_second['\"]?\s*[:=]"),
            "loss": _pick(r"['\"]?train_loss['\"]?\s*[:=]"),
            "runtime_s": _pick(r"['\"]?train_runtime['\"]?\s*[:=]"),
        },
        note="one mean over the whole run: warm-up, evaluation and checkpoints are inside it",
    ),
)
"""In the order of preference: a format that states the step time itself comes first."""

FACTS: dict[str, tuple[Pick, ...]] = {
    "allocated_bytes": (
        _pick(r"\bmax allocated:", _MIB),
        _pick(r"Peak allocated:?", _MIB),
        _pick(r"MaxMemAllocated=", _GIB),
        _pick(r"\bMax_MA", _GIB),
    ),
    "reserved_bytes": (
        _pick(r"\bmax reserved:", _MIB),
        _pick(r"Peak reserved:", _MIB),
        _pick(r"cuda_max_memory_reserved: ", human=True),
        _pick(r"\bMax_CA", _GIB),
    ),
    "tokens_per_step": (_pick(r"tokens per iteration(?: will be)?:"),),
    "num_params": (
        _pick(r"\bnum_params="),
        _pick(r"Total number of parameters: "),
        _pick(r"\bsize: (?=[\d,]+ total parameters)"),
    ),
    "world": (
        _pick(r"\bworld[ _]size ?[:=.]+"),
        Pick(re.compile(r"\[\d+/(\d+)\] Using ")),
        Pick(re.compile(r"using world size: (\d+)", re.IGNORECASE)),
    ),
    "sequence_length": (
        _pick(r"\b(?:seq_length|sequence_length|seq_len|block_size) ?[:=.]+"),
        _pick(r"sequence length "),
    ),
    "global_batch": (
        _pick(r"global[ _]batch[ _]size ?[:=.]+", human=True),
        _pick(r"Total train batch size \(w\. parallel, distributed & accumulation\) ="),
        _pick(r"\btrain_batch_size \.+"),
    ),
}
