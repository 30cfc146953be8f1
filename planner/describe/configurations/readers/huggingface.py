"""Hugging Face: Trainer arguments as JSON, in a program's YAML, or as command-line options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.readers import deepspeed
from planner.describe.configurations.readers.accelerate import fsdp_stage
from planner.describe.configurations.stated_job import KEYS, Reader, StatedJob
from planner.describe.workload import BaseFormat, LoraTarget

_MARK = "per_device_train_batch_size"
_PEFT = "peft_type"
"""A key of every adapter_config.json."""
_BASE = "quant_method"
"""A key of every quantization configuration of transformers."""

_KEYS = KEYS["huggingface"]
MODULES: dict[str, LoraTarget] = _KEYS["modules"]
"""LoRA targets by Llama's module names, which most Hugging Face models share."""


def _recognises(document: Document) -> bool:
    return _in_tables(document) or _MARK.replace("_", "-") in document.options


def _in_tables(document: Document) -> bool:
    return any(mark in document.tables for mark in (_PEFT, _BASE, _MARK))


def _state(job: StatedJob, settings: Table) -> None:
    """Read an adapter, a quantization, or Trainer arguments with those of programs on top."""
    if _PEFT in job.document.tables:
        job.kind = "an adapter of peft"
        _read_adapters(job, settings)
    elif _BASE in job.document.tables:
        job.kind = "a quantization of transformers"
        _quantization(job, settings)
    else:
        _trainer(job, settings)


def _trainer(job: StatedJob, settings: Table) -> None:
    job.layout(
        micro_batch=settings.number(_MARK),
        grad_accumulation=_one_if_absent(settings, "gradient_accumulation_steps"),
    )
    job.layout(recompute="full" if _recomputes(settings) else None)
    job.workload(
        sequence_length=settings.number(*_KEYS["lengths"]), precision=_precision(job, settings)
    )
    job.by_default(recompute="none")
    kind = job.named(settings, "optim", _KEYS["optimizers"], "adamw")
    job.workload(optimizer=kind, attention=_attention(settings))
    _read_adapters(job, settings)
    _sharding(job, settings)
    job.not_counted(settings, _KEYS["not_counted"])
    if settings.flag("torch_compile"):
        job.turn_on("compile")
    if settings.flag("use_liger_kernel", "enable_liger_kernel"):
        job.turn_on("liger")


def _recomputes(settings: Table) -> bool:
    """True if every layer is recomputed, which is LLaMA-Factory's default."""
    checkpointing = settings.flag("gradient_checkpointing", "use_gradient_checkpointing")
    if checkpointing is None and any(name in settings for name in _KEYS["of_llama_factory"]):
        return not settings.flag("disable_gradient_checkpointing")
    return bool(checkpointing)


def _one_if_absent(settings: Table, key: str) -> int | None:
    return settings.number(key) if key in settings else 1


def _precision(job: StatedJob, settings: Table) -> str | None:
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    if bf16 and fp16:
        raise job.refused("bf16 and fp16 are both true; set one of them")
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    if settings.is_open("bf16") or settings.is_open("fp16"):
        return None
    if settings.flag("fp8"):
        return "fp8"
    dtype = settings.word("torch_dtype", "dtype")
    if dtype in ("bfloat16", "float16"):
        job.note(f"a model loaded in {dtype} is estimated as trained in mixed precision")
        return "bf16" if dtype == "bfloat16" else "fp16"
    job.by_default(precision="tf32" if settings.flag("tf32") else "fp32")
    return None


def _attention(settings: Table) -> str | None:
    kind = settings.word("attn_implementation", "flash_attn")
    if kind is None:
        return None
    return "eager" if kind in ("eager", "disabled") else "flash"


def _quantization(job: StatedJob, settings: Table) -> None:
    """Read transformers' quantization_config.json: only the storage format of the frozen base."""
    if (method := settings.word(_BASE)) != "bitsandbytes":
        job.note(f"{method} is not supported; the base is estimated in the compute precision")
    else:
        job.workload(base_format=_read_base(job, settings))


def _sharding(job: StatedJob, settings: Table) -> None:
    """Read the engine under the Trainer: DeepSpeed, FSDP, or DDP unless another file names one."""
    engine: Any = settings.get("deepspeed")
    if isinstance(engine, Mapping):
        job.set_single(framework="deepspeed")
        _deepspeed(job, engine)
        return
    if isinstance(engine, str):
        job.set_single(framework="deepspeed")
        job.left_to(engine.rpartition("/")[2], "zero_stage", "offload")
        return
    words = settings.get("fsdp")
    if isinstance(words, str):
        words = words.replace(",", " ").split()
    if not isinstance(words, list) or not words:
        job.set_single(usual_framework="ddp")
        job.changes(_accumulation(settings))
        return
    job.set_single(framework="accelerate")
    strategies = [str(word).lower() for word in words if str(word) not in ("auto_wrap", "offload")]
    stage, hybrid = fsdp_stage(job, strategies[0] if strategies else "full_shard")
    job.layout(zero_stage=stage, offload="all-cpu" if "offload" in words else None)
    job.by_default(offload="none")
    job.set_single(shards_per_node=hybrid)
    job.changes(_accumulation(settings))
    config: Any = settings.get("fsdp_config")
    if isinstance(config, Mapping) and config.get("activation_checkpointing") is True:
        job.layout(recompute="full")


def _accumulation(settings: Table) -> dict[str, bool]:
    """Changes under gradient accumulation: by default Accelerate reduces once per step."""
    if _one_if_absent(settings, "gradient_accumulation_steps") == 1:
        return {}
    config: Any = settings.get("accelerator_config")
    inner = config.get("gradient_accumulation_kwargs") if isinstance(config, Mapping) else None
    each = isinstance(inner, Mapping) and inner.get("sync_each_batch") is True
    return {"communication.reduces_once": not each}


def _deepspeed(job: StatedJob, engine: Mapping[str, Any]) -> None:
    """Merge an embedded DeepSpeed configuration; values that both state must be equal."""
    inner = StatedJob(
        deepspeed.DEEPSPEED.kind, job.document, Table(engine, job.document.name, "deepspeed.")
    )
    deepspeed.state(inner, inner.table)
    for name in ("layout", "workload", "usual", "changes"):
        mine = job.fields[name]
        for key, value in inner.fields[name].items():
            if key in mine and mine[key] != value and name != "usual":
                raise job.refused(
                    f"{key} is {mine[key]} for the Trainer but {value} under deepspeed; make them "
                    "equal, or write auto there"
                )
            mine[key] = value
    job.notes += inner.notes


def _read_adapters(job: StatedJob, settings: Table) -> None:
    rank = settings.number(*_KEYS["ranks"])
    kind = settings.word("finetuning_type", _PEFT)
    wanted = settings.flag("use_peft", "use_lora")
    settings.skip("lora_alpha", "use_rslora")
    dropout, dora = settings.real("lora_dropout"), settings.flag("use_dora")
    base = _read_base(job, settings)
    if kind == "lora" or wanted or (wanted is None and kind is None and rank):
        job.workload(lora_rank=rank or 8, lora_dropout=dropout, dora=dora, base_format=base)
        job.workload(lora_targets=_targets(job, settings))
        return
    if kind == "freeze":
        job.note("frozen layers are not read; set --frozen")
    elif kind not in (None, "full"):
        job.note(f"{kind} is not supported; all weights are estimated as trained")
    if base:
        job.note("the 4/8-bit base is ignored because no adapters are trained")


def _read_base(job: StatedJob, settings: Table) -> BaseFormat | None:
    inner = settings.table("quantization_config") if "quantization_config" in settings else settings
    bits, four = settings.number("quantization_bit"), inner.flag("load_in_4bit")
    double = inner.flag("bnb_4bit_use_double_quant", "use_bnb_nested_quant", "double_quantization")
    settings.skip("bnb_4bit_quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage")
    settings.skip("quantization_method", "quantization_type")
    if four or bits == 4:
        # LLaMA-Factory quantises the scales by default
        nested = double or (double is None and bits == 4)
        return "nf4-double" if nested else "nf4"
    if inner.flag("load_in_8bit") or bits == 8:
        return "int8"
    if bits not in (None, 16):
        job.note(
            f"quantization_bit = {bits} is not supported; the base is estimated in the compute "
            "precision"
        )
    return None


def _targets(job: StatedJob, settings: Table) -> tuple[str, ...] | None:
    named = settings.get("lora_target", "lora_target_modules", "target_modules")
    words = named.replace(",", " ").split() if isinstance(named, str) else named
    if not isinstance(words, list) or not words:
        return None
    if words in (["all"], ["all-linear"]):
        return tuple(MODULES.values())
    targets = tuple(target for name, target in MODULES.items() if name in words)
    if len(targets) < len(words):
        job.note(f"LoRA on {words} is estimated as LoRA on {', '.join(targets) or 'attention'}")
    return targets or None


TRAINER = Reader(
    "arguments of the Hugging Face Trainer",
    _recognises,
    _state,
    table=lambda file: file.table() if _in_tables(file) else file.python_arguments(),
)
