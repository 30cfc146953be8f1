"""Hugging Face: Trainer arguments as JSON, in a program's YAML, or as command-line options."""

import re
from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.document import Document, Table
from planner.describe.configurations.readers import deepspeed
from planner.describe.configurations.readers.accelerate import fsdp_stage, state_fsdp
from planner.describe.configurations.stated_job import KEYS, Reader, StatedJob
from planner.describe.workload import BaseFormat, LoraTarget
from planner.errors import shorten

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
        job.refuse(settings, _KEYS["refused"])
        state_trainer(job, settings)


def state_trainer(job: StatedJob, settings: Table) -> None:
    """Read arguments of the Trainer, or axolotl's names of them."""
    if settings.word("stage") not in (None, "pt", "sft"):
        raise settings.refused("stage", "is not estimated; only pt and sft are")
    job.layout(
        micro_batch=settings.number(_MARK, "micro_batch_size"),
        grad_accumulation=_one_if_absent(settings, "gradient_accumulation_steps"),
    )
    job.layout(recompute="full" if _recomputes(settings) else None)
    job.workload(
        sequence_length=settings.number(*_KEYS["lengths"]), precision=_precision(job, settings)
    )
    job.by_default(recompute="none")
    key = "optimizer" if "optimizer" in settings else "optim"
    kind = job.named(settings, key, _KEYS["optimizers"], "optimizer")
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
    dtype = settings.word("torch_dtype", "dtype")
    if dtype in ("bfloat16", "float16"):
        job.note(f"a model loaded in {dtype} is estimated as trained in mixed precision")
    if bf16 and fp16:
        raise job.refused("bf16 and fp16 are both true; set one of them")
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    if settings.is_open("bf16") or settings.is_open("fp16"):
        return None
    if settings.flag("fp8"):
        return "fp8"
    if dtype in ("bfloat16", "float16"):
        return "bf16" if dtype == "bfloat16" else "fp16"
    job.by_default(precision="tf32" if settings.flag("tf32") else "fp32")
    return None


def _attention(settings: Table) -> str | None:
    kind = settings.word("attn_implementation", "flash_attn")
    if kind is None:
        fused = any([settings.flag(key) for key in _KEYS["fused"]])
        return "eager" if settings.flag("eager_attention") else "flash" if fused else None
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
    section = settings.table("fsdp_config") if "fsdp_config" in settings else None
    if section is not None and ("base_model" in settings or words):
        _fsdp(job, settings, section)
        return
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


def _fsdp(job: StatedJob, settings: Table, section: Table) -> None:
    """Read FSDP's section, whose keys may lack the prefix that Accelerate's have."""
    words = settings.get("fsdp") or []
    words = words.replace(",", " ").split() if isinstance(words, str) else list(words)
    values = {f"fsdp_{key.removeprefix('fsdp_')}": value for key, value in section.items()}
    version = settings.number("fsdp_version")
    values |= {"fsdp_version": version} if version else {}
    strategies = [str(word) for word in words if str(word) not in ("auto_wrap", "offload")]
    values |= {"fsdp_sharding_strategy": strategies[0]} if strategies else {}
    values |= {"fsdp_offload_params": True} if "offload" in words else {}
    plugin = Table(values, job.document.name, "fsdp_config.")
    state_fsdp(job, plugin)
    job.changes(_accumulation(settings))
    settings.skip("fsdp_config")
    job.check_unread(plugin)


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
    kind = settings.word("finetuning_type", _PEFT, "adapter")
    if kind is None and "base_model" in settings:
        kind = "full"  # axolotl: without an adapter, its rank is not used
    wanted = settings.flag("use_peft", "use_lora")
    settings.skip("lora_alpha", "use_rslora", "lora_target_linear", *_KEYS["targets"])
    dropout, dora = settings.real("lora_dropout"), settings.flag("use_dora", "peft_use_dora")
    base = _read_base(job, settings)
    if kind in ("lora", "qlora") or wanted or (wanted is None and kind is None and rank):
        job.workload(lora_rank=rank or 8, lora_dropout=dropout, dora=dora, base_format=base)
        job.workload(lora_targets=_targets(job, settings))
        return
    if kind == "freeze":
        job.note("frozen layers are not read; set --frozen")
    elif kind not in (None, "full"):
        raise job.refused(f"{kind} adapters are not estimated; use lora, or full weights")
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
        nested = double or (double is None and (bits == 4 or "base_model" in settings))
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
    if settings.flag("lora_target_linear"):
        return tuple(MODULES.values())
    named = settings.get(*_KEYS["targets"])
    words = _module_names(named) if isinstance(named, str) else named
    if not isinstance(words, list) or not words:
        return None
    words = [str(word).rpartition(".")[2] for word in words]
    if words in (["all"], ["all-linear"]):
        return tuple(MODULES.values())
    targets = tuple(target for name, target in MODULES.items() if name in words)
    if set(words) - MODULES.keys():
        job.unclear(f"LoRA on {shorten(str(named), 60)}", "lora_targets")
    return targets or None


def _module_names(text: str) -> list[str]:
    """Read module names from words, or from a pattern such as `self_attn.(q|k)_proj`."""
    if "(" not in text:
        return text.replace(",", " ").split()
    groups = re.findall(r"\(([\w|]+)\)_proj", text)
    # a digit picks layers, or modules of other kinds
    picks = not groups or re.search(r"(?<!\\)\d|vision|expert", text)
    return [text] if picks else [f"{w}_proj" for group in groups for w in group.split("|")]


TRAINER = Reader(
    "arguments of the Hugging Face Trainer",
    _recognises,
    _state,
    table=lambda file: file.table() if _in_tables(file) else file.python_arguments(),
    harmless=_KEYS["harmless"],
)
