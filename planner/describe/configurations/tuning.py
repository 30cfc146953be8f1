"""Tuning: adapters and frozen bases in the words of peft, bitsandbytes and programs around them."""

from __future__ import annotations

from planner.describe.configurations.statement import Statement
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


def read_adapters(said: Statement, given: Table) -> None:
    """LoRA, DoRA and how the frozen base is stored, where a file says so."""
    rank = given.number(*_RANKS)
    kind = given.word("finetuning_type", MARK)
    wanted = given.flag("use_peft", "use_lora")
    given.skip("lora_alpha", "use_rslora")
    dropout, dora = given.real("lora_dropout"), given.flag("use_dora")
    base = read_base(said, given)
    if kind == "lora" or wanted or (wanted is None and kind is None and rank):
        said.workload(lora_rank=rank or 8, lora_dropout=dropout, dora=dora, base_format=base)
        said.workload(lora_targets=_targets(said, given))
        return
    if kind == "freeze":
        said.note("frozen layers are not read: say --frozen")
    elif kind not in (None, "full"):
        said.note(f"{kind} is not described: all weights are taken as trained")
    if base:
        said.note("a base in 4 or 8 bits is not counted: no adapters are trained beside it")


def read_base(said: Statement, given: Table) -> BaseFormat | None:
    """The format of the frozen base; bitsandbytes' words, or LLaMA-Factory's for them."""
    inner = given.table("quantization_config") if "quantization_config" in given else given
    bits, four = given.number("quantization_bit"), inner.flag("load_in_4bit")
    double = inner.flag("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization")
    given.skip("bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    given.skip("quantization_method", "quantization_type")
    if four or bits == 4:
        # LLaMA-Factory quantises the scales unless it is told not to
        nested = double or (double is None and bits == 4)
        return "nf4-double" if nested else "nf4"
    if inner.flag("load_in_8bit") or bits == 8:
        return "int8"
    if bits not in (None, 16):
        said.note(f"quantization_bit = {bits} is not described: the base is taken as it computes")
    return None


def _targets(said: Statement, given: Table) -> tuple[str, ...] | None:
    """The matrices that are adapted, by the names of Hugging Face's modules."""
    named = given.get("lora_target", "lora_target_modules", "target_modules")
    words = named.replace(",", " ").split() if isinstance(named, str) else named
    if not isinstance(words, list) or not words:
        return None
    if words in (["all"], ["all-linear"]):
        return tuple(MODULES.values())
    known = tuple(ours for name, ours in MODULES.items() if name in words)
    if len(known) < len(words):
        said.note(f"LoRA on {words} is estimated as LoRA on {', '.join(known) or 'attention'}")
    return known or None
