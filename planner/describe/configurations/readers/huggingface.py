"""Hugging Face: the Trainer's arguments, as JSON, in the YAML of its programs, or as options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.describe.configurations.configuration import Configuration
from planner.describe.configurations.document import Document
from planner.describe.configurations.readers import deepspeed
from planner.describe.configurations.readers.accelerate import fsdp_stage
from planner.describe.configurations.statement import Statement
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
        given = document.table()
    else:
        options = {name.replace("-", "_"): value for name, value in document.options.items()}
        given = Table(options, document.name)
    said = Statement(KIND, document.name, given)
    said.layout(
        micro_batch=given.number(_MARK),
        grad_accumulation=_one_if_absent(given, "gradient_accumulation_steps"),
    )
    said.layout(recompute="full" if _recomputes(given) else None)
    said.workload(sequence_length=given.number(*_LENGTHS), precision=_precision(said, given))
    said.by_default(recompute="none")
    kind = said.named(given, "optim", _OPTIMIZERS, "adamw")
    said.workload(optimizer=kind, attention=_attention(given))
    read_adapters(said, given)
    _sharding(said, given)
    said.not_counted(given, _NOT_COUNTED)
    if given.flag("torch_compile"):
        said.turned_on("compile")
    if given.flag("use_liger_kernel", "enable_liger_kernel"):
        said.turned_on("liger")
    return said.configuration(hides=lambda key: True)


def _recomputes(given: Table) -> bool:
    """Whether every layer is recomputed: LLaMA-Factory does so unless it is told not to."""
    asked = given.flag("gradient_checkpointing", "use_gradient_checkpointing")
    if asked is None and any(name in given for name in _LLAMA_FACTORY):
        return not given.flag("disable_gradient_checkpointing")
    return bool(asked)


def _one_if_absent(given: Table, key: str) -> int | None:
    return given.number(key) if key in given else 1


def _precision(said: Statement, given: Table) -> str | None:
    bf16, fp16 = given.flag("bf16"), given.flag("fp16")
    if bf16 and fp16:
        raise said.refused("bf16 and fp16 are both true; set one of them")
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    if given.is_open("bf16") or given.is_open("fp16"):
        return None
    if given.flag("fp8"):
        return "fp8"
    whole = given.word("torch_dtype", "dtype")
    if whole in ("bfloat16", "float16"):
        said.note(f"a model loaded in {whole} is estimated as trained in mixed precision")
        return "bf16" if whole == "bfloat16" else "fp16"
    said.by_default(precision="tf32" if given.flag("tf32") else "fp32")
    return None


def _attention(given: Table) -> str | None:
    kind = given.word("attn_implementation", "flash_attn")
    if kind is None:
        return None
    return "eager" if kind in ("eager", "disabled") else "flash"


def _adapter_config(document: Document) -> Configuration:
    """peft's adapter_config.json: adapters and nothing else."""
    given = document.table()
    said = Statement("an adapter of peft", document.name, given)
    read_adapters(said, given)
    return said.configuration(hides=lambda key: True)


def _quantization_config(document: Document) -> Configuration:
    """transformers' quantization_config.json: how a frozen base is stored, and nothing else."""
    given = document.table()
    said = Statement("a quantization of transformers", document.name, given)
    if (method := given.word(BASE_MARK)) != "bitsandbytes":
        said.note(f"{method} is not described: the base is taken as it computes")
    else:
        said.workload(base_format=read_base(said, given))
    return said.configuration(hides=lambda key: True)


def _sharding(said: Statement, given: Table) -> None:
    """What runs under the Trainer: DeepSpeed, FSDP, or DDP where no other file says."""
    engine: Any = given.get("deepspeed")
    if isinstance(engine, Mapping):
        said.is_(framework="deepspeed")
        _deepspeed(said, engine)
        return
    if isinstance(engine, str):
        said.is_(framework="deepspeed")
        said.left_to(engine.rpartition("/")[2], "zero_stage", "offload")
        return
    words = given.get("fsdp")
    if isinstance(words, str):
        words = words.replace(",", " ").split()
    if not isinstance(words, list) or not words:
        said.is_(usual_framework="ddp")
        said.changes(_accumulation(given))
        return
    said.is_(framework="accelerate")
    known = [str(word).lower() for word in words if str(word) not in ("auto_wrap", "offload")]
    stage, hybrid = fsdp_stage(said, known[0] if known else "full_shard")
    said.layout(zero_stage=stage, offload="all-cpu" if "offload" in words else None)
    said.by_default(offload="none")
    said.is_(shards_per_node=hybrid)
    said.changes(_accumulation(given))
    config: Any = given.get("fsdp_config")
    if isinstance(config, Mapping) and config.get("activation_checkpointing") is True:
        said.layout(recompute="full")


def _accumulation(given: Table) -> dict[str, bool]:
    """Whether whole gradients are summed over several passes, as Accelerate does unless told."""
    if _one_if_absent(given, "gradient_accumulation_steps") == 1:
        return {}
    config: Any = given.get("accelerator_config")
    inner = config.get("gradient_accumulation_kwargs") if isinstance(config, Mapping) else None
    each = isinstance(inner, Mapping) and inner.get("sync_each_batch") is True
    return {"communication.reduces_once": not each}


def _deepspeed(said: Statement, engine: Mapping[str, Any]) -> None:
    """DeepSpeed's own settings inside; what both say must be equal, or left open there."""
    inner = Statement(deepspeed.KIND, said.file, Table(engine, said.file, "deepspeed."))
    deepspeed.state(inner, inner.table)
    for name in ("layout", "workload", "usual", "changes"):
        mine = said.fields[name]
        for key, value in inner.fields[name].items():
            if key in mine and mine[key] != value and name != "usual":
                raise said.refused(
                    f"{key} is {mine[key]} for the Trainer but {value} under deepspeed; make them "
                    "equal, or write auto there"
                )
            mine[key] = value
    said.notes += inner.notes
