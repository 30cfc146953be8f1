"""Log formats: what the training loops of the common frameworks print, as data.

A format is a pattern that marks the line of a step and patterns of the figures on that line.
Facts (memory, ranks, batch) may stand on any line of any format: a Megatron-DeepSpeed log holds
lines of both. Figures are brought to SI units here. Words that a line must hold come first: looking
for words is a hundred times faster than trying patterns, and most lines of a log are no steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from planner.evidence.logs.steps import Source

__all__ = ["FACTS", "FORMATS", "Format", "Pick", "number"]

_NUMBER = r"([+-]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|-?inf)"
_HUMAN = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_MIB, _GIB, _GB = 2.0**20, 2.0**30, 1e9


def number(text: str) -> float:
    """A printed number; thousands separators are dropped.

    >>> number("5,762"), number("1.2e3")
    (5762.0, 1200.0)
    """
    return float(text.replace(",", ""))


@dataclass(frozen=True, slots=True)
class Pick:
    """Place of a figure in a line, and its factor to SI units."""

    pattern: re.Pattern[str]
    scale: float = 1.0
    human: bool = False
    """Whether a decimal prefix may follow the number, as in 43.2K."""

    def find(self, line: str) -> float | None:
        """The figure on a line, or None."""
        match = self.pattern.search(line)
        if match is None:
            return None
        value = number(match[1]) * self.scale
        if self.human:
            value *= _HUMAN[(match[2] or "").upper()]
        return value


def _pick(before: str, scale: float = 1.0, *, human: bool = False) -> Pick:
    after = r"\s?([KkMGBT]?)(?![A-Za-z])" if human else ""
    return Pick(re.compile(before + r"\s*'?" + _NUMBER + after, re.IGNORECASE), scale, human)


@dataclass(frozen=True, slots=True)
class Format:
    """One framework's step line. Picks are by field of `planner.evidence.logs.steps.Step`."""

    source: Source
    needs: tuple[str, ...]
    """Words that the line of a step holds."""
    marks: re.Pattern[str]
    picks: dict[str, Pick]

    def matches(self, line: str) -> bool:
        """Whether a line is that of a step."""
        return all(word in line for word in self.needs) and bool(self.marks.search(line))


FORMATS: tuple[Format, ...] = (
    Format(
        Source(
            "wordplay",
            "wordplay / ezpz",
            "ddp",
            "mfu is a running mean against the peak that the program assumes",
        ),
        ("loss=", " dt="),
        re.compile(r"\b(?:step|iter)=\d+\b"),
        {
            "step": _pick(r"\b(?:step|iter)="),
            "loss": _pick(r"\bloss="),
            "time_s": _pick(r"\bdt="),
            "tokens_per_s": _pick(r"\btps="),
            "tokens_per_s_per_device": _pick(r"\btps_per_gpu="),
            "mfu": _pick(r"\bmfu=", 0.01),
        },
    ),
    Format(
        Source(
            "nanogpt",
            "nanoGPT",
            "ddp",
            "mfu is a running mean against 312 TFLOP/s, whatever the device",
        ),
        ("iter ", ": loss "),
        re.compile(r"\biter \d+: loss .*time [\d.]+ms"),
        {
            "step": _pick(r"\biter "),
            "loss": _pick(r"\bloss "),
            "time_s": _pick(r"\btime ", 1e-3),
            "mfu": _pick(r"\bmfu ", 0.01),
        },
    ),
    Format(
        Source("nanotron", "nanotron", "nanotron", "figures are printed with three digits"),
        ("time_per_iteration_ms: ",),
        re.compile(r"\biteration: \d+ / \d+ \|"),
        {
            "step": _pick(r"\biteration: "),
            "loss": _pick(r"\blm_loss: "),
            "time_s": _pick(r"time_per_iteration_ms: ", 1e-3, human=True),
            "tokens_per_s": _pick(r"\btokens_per_sec: ", human=True),
            "tokens_per_s_per_device": _pick(r"\btokens_per_sec_per_gpu: ", human=True),
            "flop_per_s_per_device": _pick(r"\bmodel_tflops_per_gpu: ", 1e12, human=True),
            "global_batch": _pick(r"\bglobal_batch_size: ", human=True),
        },
    ),
    Format(
        Source("megatron", "Megatron-LM / Megatron-DeepSpeed", "megatron-lm"),
        ("iteration", "elapsed"),
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
        Source("torchtitan", "torchtitan", "fsdp2", "tokens/s is the mean since the line before"),
        ("step:", "loss:", "tps:"),
        re.compile(r"(?<!validate )\bstep:\s*\d+"),
        {
            "step": _pick(r"\bstep:"),
            "loss": _pick(r"\bloss:"),
            "tokens_per_s_per_device": _pick(r"\btps:"),
            "flop_per_s_per_device": _pick(r"\btflops:", 1e12),
            "mfu": _pick(r"\bmfu:", 0.01),
            "reserved_bytes": _pick(r"\bmemory:", _GIB),
        },
    ),
    Format(
        Source("nemo", "NeMo", "megatron-lm"),
        ("train_step_timing in s",),
        re.compile(r"train_step_timing in s[=:]"),
        {
            "step": _pick(r"global_step[=:]"),
            "loss": _pick(r"reduced_train_loss[=:]"),
            "time_s": _pick(r"train_step_timing in s[=:]"),
            "global_batch": _pick(r"global_batch_size[=:]"),
        },
    ),
    Format(
        Source(
            "composer",
            "Composer / llm-foundry",
            "llm-foundry",
            "rates are running means over the last batches",
        ),
        ("throughput/batches_per_sec",),
        re.compile(r"throughput/batches_per_sec:"),
        {"steps_per_s": _pick(r"throughput/batches_per_sec:")},
    ),
    Format(
        Source(
            "litgpt",
            "LitGPT",
            "fsdp2",
            "times are of one micro-batch, taken times the micro-batches of a step",
        ),
        ("iter time:",),
        re.compile(r"\biter \d+ step \d+ \|"),
        {
            "step": _pick(r"\bstep"),
            "passes": _pick(r"\biter"),
            "loss": _pick(r"\bloss train:"),
            "pass_time_s": _pick(r"\biter time:", 1e-3),
        },
    ),
    Format(
        Source(
            "torchtune", "torchtune", "fsdp2", "tokens/s counts the tokens that are not padding"
        ),
        ("tokens_per_second_per_gpu:",),
        re.compile(r"\bStep \d+ \|"),
        {
            "step": _pick(r"\bStep"),
            "loss": _pick(r"\bloss:"),
            "tokens_per_s_per_device": _pick(r"\btokens_per_second_per_gpu:"),
            "allocated_bytes": _pick(r"\bpeak_memory_alloc:", _GIB),
            "reserved_bytes": _pick(r"\bpeak_memory_reserved:", _GIB),
        },
    ),
    Format(
        Source("axolotl", "axolotl", "accelerate"),
        ("_per_gpu", "loss"),
        re.compile(r"tokens[_/]per_sec(?:ond)?_per_gpu['\"]:"),
        {
            "loss": _pick(r"['\"]loss['\"]:"),
            "tokens_per_s_per_device": _pick(r"tokens[_/]per_sec(?:ond)?_per_gpu['\"]:"),
        },
    ),
    Format(
        Source("deepspeed", "DeepSpeed", "deepspeed"),
        (),
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
        Source(
            "huggingface",
            "Hugging Face Trainer",
            "accelerate",
            "one mean over the whole run: warm-up, evaluation and checkpoints are inside it",
        ),
        ("train_steps_per_second",),
        re.compile(r"['\"]?train_steps_per_second['\"]?\s*[:=]"),
        {
            "steps_per_s": _pick(r"['\"]?train_steps_per_second['\"]?\s*[:=]"),
            "samples_per_s": _pick(r"['\"]?train_samples_per_second['\"]?\s*[:=]"),
            "loss": _pick(r"['\"]?train_loss['\"]?\s*[:=]"),
            "runtime_s": _pick(r"['\"]?train_runtime['\"]?\s*[:=]"),
        },
    ),
    Format(
        Source(
            "progress",
            "progress bar",
            note="a progress bar states a running mean; its iterations are taken as steps",
        ),
        ("it",),
        re.compile(r"\d+/\d+ \[[\d:]+<[^,\]]*, *[\d.]+(?:s/it|it/s)"),
        {
            "step": Pick(re.compile(r"(\d+)/\d+ \[")),
            "time_s": Pick(re.compile(r", *([\d.]+)s/it")),
            "steps_per_s": Pick(re.compile(r", *([\d.]+)it/s")),
        },
    ),
)
"""In the order of preference: a format that states the step time itself comes first."""

FACTS: tuple[tuple[str, str, Pick], ...] = (
    ("allocated_bytes", "max allocated:", _pick(r"\bmax allocated:", _MIB)),
    ("allocated_bytes", "peak allocated", _pick(r"Peak allocated:?", _MIB)),
    ("allocated_bytes", "maxmemallocated=", _pick(r"MaxMemAllocated=", _GIB)),
    ("allocated_bytes", "max_ma", _pick(r"\bMax_MA", _GIB)),
    ("allocated_bytes", "peak_allocated_mem:", _pick(r"memory/peak_allocated_mem:", _GB)),
    ("allocated_bytes", "max_mem_allocated", _pick(r"max_mem_allocated\(gib\)['\"]?:", _GIB)),
    ("reserved_bytes", "max reserved:", _pick(r"\bmax reserved:", _MIB)),
    ("reserved_bytes", "peak reserved:", _pick(r"Peak reserved:", _MIB)),
    (
        "reserved_bytes",
        "cuda_max_memory_reserved: ",
        _pick(r"cuda_max_memory_reserved: ", human=True),
    ),
    ("reserved_bytes", "max_ca", _pick(r"\bMax_CA", _GIB)),
    ("reserved_bytes", "peak_reserved_mem:", _pick(r"memory/peak_reserved_mem:", _GB)),
    ("tokens_per_step", "tokens per iter", _pick(r"tokens per iteration(?: will be)?:")),
    ("num_params", "num_params=", _pick(r"\bnum_params=")),
    ("num_params", "total number of", _pick(r"Total number of parameters: ")),
    ("num_params", "total parameters", _pick(r"\bsize: (?=[\d,]+ total parameters)")),
    ("world", "world", _pick(r"\bworld[ _]size ?[:=.]+")),
    ("world", "using ", Pick(re.compile(r"\[\d+/(\d+)\] Using "))),
    ("world", "using world", Pick(re.compile(r"using world size: (\d+)", re.IGNORECASE))),
    ("sequence_length", "seq", _pick(r"\b(?:seq_length|sequence_length|seq_len) ?[:=.]+")),
    ("sequence_length", "block_size", _pick(r"\bblock_size ?[:=.]+")),
    ("sequence_length", "sequence length ", _pick(r"sequence length ")),
    ("global_batch", "global", _pick(r"global[ _]batch[ _]size ?[:=.]+", human=True)),
    (
        "global_batch",
        "total train batch size",
        _pick(r"Total train batch size \(w\. parallel, distributed & accumulation\) ="),
    ),
    ("global_batch", "train_batch_size", _pick(r"\btrain_batch_size \.+")),
)
"""Name, a word that the line holds in lower case, and where the figure stands; the first that a
line states of a name counts."""
