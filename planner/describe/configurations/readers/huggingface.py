"""Hugging Face: the Trainer's arguments, as JSON, in the YAML of its programs, or as options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.readers import deepspeed
from planner.describe.configurations.readers.accelerate import fsdp_stage
from planner.describe.configurations.stated_job import StatedJob
from planner.describe.configurations.table import Table
from planner.describe.configurations.tuning import BASE_MARK, read_adapters, read_base
from planner.describe.configurations.tuning import MARK as PEFT

__all__ = ["KIND", "read", "recognises"]

KIND = "arguments of the Hugging Face Trainer"
_MARK = "per_device_train_batch_size"
_OPTIMIZERS = {
    "adamw_torch": "adamw",
    "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw",
    "adamw_apex_fused": "adamw",
    "adafactor": "adafactor",
    "sgd": "sgd",
    "adamw_bnb_8bit": "adam-8bit",
    "adamw_8bit": "adam-8bit",
    "paged_adamw": "paged-adamw",
    "paged_adamw_32bit": "paged-adamw",
    "paged_adamw_8bit": "paged-adam-8bit",
    "lion_32bit": "lion",
}
_LENGTHS = ("max_seq_length", "max_length", "model_max_length", "cutoff_len", "block_size")
_LLAMA_FACTORY = ("cutoff_len", "finetuning_type")
_NOT_COUNTED = {
    "tensor_model_parallel_size": "degrees of Megatron are not read here; say --tp",
    "pipeline_model_parallel_size": "degrees of Megatron are not read here; say --pp",
    "packing": "every sequence is taken as one full document unless --document-lengths is said",
    "neat_packing": "every sequence is taken as one full document unless --document-lengths is "
    "said",
    "padding_free": "every sequence is taken as one full document unless --document-lengths is "
    "said",
    "neftune_noise_alpha": "noise takes a copy of the embedded tokens",
    "optim_target_modules": "gradients are taken as whole",
    "use_unsloth": "its own kernels keep less",
    "use_galore": "gradients are taken as whole",
    "use_badam": "all blocks are taken as trained",
    "auto_find_batch_size": "the micro-batch is taken as written",
    "activation_offloading": "activations are taken as on the device",
    "torch_empty_cache_steps": "emptying the cache takes time",
}


def recognises(document: Document) -> bool:
    """Whether the Trainer's batch of a device stands there, an adapter, or a frozen base."""
    if PEFT in document.tables or BASE_MARK in document.tables:
        return True
    return _MARK in document.tables or _MARK.replace("_", "-") in document.options


def read(document: Document) -> Configuration:
    """What they say; fields of programs on the Trainer, such as a LoRA rank, too."""
    if PEFT in document.tables:
        return _adapter_config(document)
    if BASE_MARK in document.tables:
        return _quantization_config(document)
    if _MARK in document.tables:
        settings = document.table()
    else:
        options = {name.replace("-", "_"): value for name, value in document.options.items()}
        settings = Table(options, document.name)
    stated_job = StatedJob(KIND, document.name, settings)
    stated_job.layout(
        micro_batch=settings.number(_MARK),
        grad_accumulation=_one_if_absent(settings, "gradient_accumulation_steps"),
    )
    stated_job.layout(recompute="full" if _recomputes(settings) else None)
    stated_job.workload(
        sequence_length=settings.number(*_LENGTHS), precision=_precision(stated_job, settings)
    )
    stated_job.by_default(recompute="none")
    kind = stated_job.named(settings, "optim", _OPTIMIZERS, "adamw")
    stated_job.workload(optimizer=kind, attention=_attention(settings))
    read_adapters(stated_job, settings)
    _sharding(stated_job, settings)
    stated_job.not_counted(settings, _NOT_COUNTED)
    if settings.flag("torch_compile"):
        stated_job.turned_on("compile")
    if settings.flag("use_liger_kernel", "enable_liger_kernel"):
        stated_job.turned_on("liger")
    return stated_job.configuration(hides=lambda key: True)


def _recomputes(settings: Table) -> bool:
    """Whether every layer is recomputed: LLaMA-Factory does so unless it is told not to."""
    checkpointing = settings.flag("gradient_checkpointing", "use_gradient_checkpointing")
    if checkpointing is None and any(name in settings for name in _LLAMA_FACTORY):
        return not settings.flag("disable_gradient_checkpointing")
    return bool(checkpointing)


def _one_if_absent(settings: Table, key: str) -> int | None:
    return settings.number(key) if key in settings else 1


def _precision(stated_job: StatedJob, settings: Table) -> str | None:
    bf16, fp16 = settings.flag("bf16"), settings.flag("fp16")
    if bf16 and fp16:
        raise stated_job.refused("bf16 and fp16 are both true; set one of them")
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    if settings.is_open("bf16") or settings.is_open("fp16"):
        return None
    if settings.flag("fp8"):
        return "fp8"
    dtype = settings.word("torch_dtype", "dtype")
    if dtype in ("bfloat16", "float16"):
        stated_job.note(f"a model loaded in {dtype} is estimated as trained in mixed precision")
        return "bf16" if dtype == "bfloat16" else "fp16"
    stated_job.by_default(precision="tf32" if settings.flag("tf32") else "fp32")
    return None


def _attention(settings: Table) -> str | None:
    kind = settings.word("attn_implementation", "flash_attn")
    if kind is None:
        return None
    return "eager" if kind in ("eager", "disabled") else "flash"


def _adapter_config(document: Document) -> Configuration:
    """peft's adapter_config.json: adapters and nothing else."""
    settings = document.table()
    stated_job = StatedJob("an adapter of peft", document.name, settings)
    read_adapters(stated_job, settings)
    return stated_job.configuration(hides=lambda key: True)


def _quantization_config(document: Document) -> Configuration:
    """transformers' quantization_config.json: how a frozen base is stored, and nothing else."""
    settings = document.table()
    stated_job = StatedJob("a quantization of transformers", document.name, settings)
    if (method := settings.word(BASE_MARK)) != "bitsandbytes":
        stated_job.note(f"{method} is not described: the base is taken as it computes")
    else:
        stated_job.workload(base_format=read_base(stated_job, settings))
    return stated_job.configuration(hides=lambda key: True)


def _sharding(stated_job: StatedJob, settings: Table) -> None:
    """What runs under the Trainer: DeepSpeed, FSDP, or DDP where no other file says."""
    engine: Any = settings.get("deepspeed")
    if isinstance(engine, Mapping):
        stated_job.is_(framework="deepspeed")
        _deepspeed(stated_job, engine)
        return
    if isinstance(engine, str):
        stated_job.is_(framework="deepspeed")
        stated_job.left_to(engine.rpartition("/")[2], "zero_stage", "offload")
        return
    words = settings.get("fsdp")
    if isinstance(words, str):
        words = words.replace(",", " ").split()
    if not isinstance(words, list) or not words:
        stated_job.is_(usual_framework="ddp")
        stated_job.changes(_accumulation(settings))
        return
    stated_job.is_(framework="accelerate")
    strategies = [str(word).lower() for word in words if str(word) not in ("auto_wrap", "offload")]
    stage, hybrid = fsdp_stage(stated_job, strategies[0] if strategies else "full_shard")
    stated_job.layout(zero_stage=stage, offload="all-cpu" if "offload" in words else None)
    stated_job.by_default(offload="none")
    stated_job.is_(shards_per_node=hybrid)
    stated_job.changes(_accumulation(settings))
    config: Any = settings.get("fsdp_config")
    if isinstance(config, Mapping) and config.get("activation_checkpointing") is True:
        stated_job.layout(recompute="full")


def _accumulation(settings: Table) -> dict[str, bool]:
    """Whether whole gradients are summed over several passes, as Accelerate does unless told."""
    if _one_if_absent(settings, "gradient_accumulation_steps") == 1:
        return {}
    config: Any = settings.get("accelerator_config")
    inner = config.get("gradient_accumulation_kwargs") if isinstance(config, Mapping) else None
    each = isinstance(inner, Mapping) and inner.get("sync_each_batch") is True
    return {"communication.reduces_once": not each}


def _deepspeed(stated_job: StatedJob, engine: Mapping[str, Any]) -> None:
    """DeepSpeed's own settings inside; what both say must be equal, or left open there."""
    inner = StatedJob(deepspeed.KIND, stated_job.file, Table(engine, stated_job.file, "deepspeed."))
    deepspeed.state(inner, inner.table)
    for name in ("layout", "workload", "usual", "changes"):
        mine = stated_job.fields[name]
        for key, value in inner.fields[name].items():
            if key in mine and mine[key] != value and name != "usual":
                raise stated_job.refused(
                    f"{key} is {mine[key]} for the Trainer but {value} under deepspeed; make them "
                    "equal, or write auto there"
                )
            mine[key] = value
    stated_job.notes += inner.notes
