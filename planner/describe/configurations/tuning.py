"""Tuning: adapters and frozen bases in the words of peft, bitsandbytes and programs around them."""

from __future__ import annotations

from planner.describe.configurations.stated_job import StatedJob
from planner.describe.configurations.table import Table
from planner.describe.workload import BaseFormat, LoraTarget

__all__ = ["BASE_MARK", "MARK", "MODULES", "read_adapters", "read_base"]

MARK = "peft_type"
"""A key of every adapter_config.json."""
BASE_MARK = "quant_method"
"""A key of every quantization configuration of transformers."""

_RANKS = ("lora_rank", "lora_r", "r")
MODULES: dict[str, LoraTarget] = {
    "q_proj": "query", "k_proj": "key", "v_proj": "value", "o_proj": "out",
    "gate_proj": "gate", "up_proj": "up", "down_proj": "down",
}  # fmt: skip
"""What can be adapted, by the names of Llama's modules, which most models of Hugging Face share."""


def read_adapters(stated_job: StatedJob, settings: Table) -> None:
    """LoRA, DoRA and how the frozen base is stored, where a file says so."""
    rank = settings.number(*_RANKS)
    kind = settings.word("finetuning_type", MARK)
    wanted = settings.flag("use_peft", "use_lora")
    settings.skip("lora_alpha", "use_rslora")
    dropout, dora = settings.real("lora_dropout"), settings.flag("use_dora")
    base = read_base(stated_job, settings)
    if kind == "lora" or wanted or (wanted is None and kind is None and rank):
        stated_job.workload(lora_rank=rank or 8, lora_dropout=dropout, dora=dora, base_format=base)
        stated_job.workload(lora_targets=_targets(stated_job, settings))
        return
    if kind == "freeze":
        stated_job.note("frozen layers are not read: say --frozen")
    elif kind not in (None, "full"):
        stated_job.note(f"{kind} is not described: all weights are taken as trained")
    if base:
        stated_job.note("a base in 4 or 8 bits is not counted: no adapters are trained beside it")


def read_base(stated_job: StatedJob, settings: Table) -> BaseFormat | None:
    """The format of the frozen base; bitsandbytes' words, or LLaMA-Factory's for them."""
    inner = settings.table("quantization_config") if "quantization_config" in settings else settings
    bits, four = settings.number("quantization_bit"), inner.flag("load_in_4bit")
    double = inner.flag("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization")
    settings.skip("bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    settings.skip("quantization_method", "quantization_type")
    if four or bits == 4:
        # LLaMA-Factory quantises the scales unless it is told not to
        nested = double or (double is None and bits == 4)
        return "nf4-double" if nested else "nf4"
    if inner.flag("load_in_8bit") or bits == 8:
        return "int8"
    if bits not in (None, 16):
        stated_job.note(
            f"quantization_bit = {bits} is not described: the base is taken as it computes"
        )
    return None


def _targets(stated_job: StatedJob, settings: Table) -> tuple[str, ...] | None:
    """The matrices that are adapted, by the names of Hugging Face's modules."""
    named = settings.get("lora_target", "lora_target_modules", "target_modules")
    words = named.replace(",", " ").split() if isinstance(named, str) else named
    if not isinstance(words, list) or not words:
        return None
    if words in (["all"], ["all-linear"]):
        return tuple(MODULES.values())
    targets = tuple(ours for name, ours in MODULES.items() if name in words)
    if len(targets) < len(words):
        stated_job.note(
            f"LoRA on {words} is estimated as LoRA on {', '.join(targets) or 'attention'}"
        )
    return targets or None
