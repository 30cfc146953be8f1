"""Adapters: low-rank ones and the frozen base beside them, in files that a user's program loads.

`adapter_config.json` is for peft's `LoraConfig.from_pretrained`, `quantization_config.json` for
transformers' `BitsAndBytesConfig.from_dict`; what they leave open is said in a sentence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from planner.describe.configurations.readers.huggingface import MODULES
from planner.describe.workload import LoraTarget, TrainingPrecision, Workload
from planner.emitters.batch_job import BatchJob
from planner.emitters.recipe import OWN_PROGRAM, File, Recipe
from planner.emitters.text import json_text
from planner.errors import EmitError, shorten

__all__ = ["with_adapters"]

_COMPUTES: dict[TrainingPrecision, str] = {
    "bf16": "bfloat16",
    "fp8": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "tf32": "float32",
}


def with_adapters(job: BatchJob, recipe: Recipe) -> Recipe:
    """The recipe with files and sentences on what is trained beside what is frozen.

    Raises EmitError where the program is not the user's own: what it trains is up to it.
    """
    workload = job.workload
    if not workload.adapted:
        return recipe
    if recipe.default_program != OWN_PROGRAM:
        raise EmitError(
            f"adapters and frozen parts are not written for {shorten(job.framework.name)}; use a "
            "framework that runs your own program, such as deepspeed or accelerate"
        )
    files, notes = [*recipe.files], [*recipe.notes]
    if workload.lora_rank:
        files.append(_adapters(workload))
        notes += _said_of_adapters(workload)
    if workload.frozen:
        notes.append(f"`{OWN_PROGRAM}` freezes {', '.join(workload.frozen)}.")
    if workload.base_format == "fp8":
        notes.append(
            f"`{OWN_PROGRAM}` itself loads the frozen layers in 8-bit floating point, a scale per "
            "row, such as torchao's: no file here says so, and loaded as they are they take twice "
            "the memory."
        )
    elif workload.quantized:
        files.append(_frozen_base(job))
        notes.append(
            f"`{OWN_PROGRAM}` loads the frozen layers with transformers' "
            "`BitsAndBytesConfig.from_dict` of `quantization_config.json`."
        )
    return replace(recipe, files=tuple(files), notes=tuple(notes))


def _adapters(workload: Workload) -> File:
    """`adapter_config.json`; peft sets what it leaves out to its own defaults."""
    targets = workload.lora_targets
    names = [module for module, target in MODULES.items() if target in targets]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": workload.lora_rank,
        "lora_dropout": workload.lora_dropout,
        "use_dora": workload.dora,
        "target_modules": "all-linear" if _all(targets) else names,
    }
    return File("adapter_config.json", "the adapters, as peft loads them", json_text(config))


def _said_of_adapters(workload: Workload) -> list[str]:
    """What stands in `adapter_config.json` and what the user still decides."""
    kind, targets = "DoRA" if workload.dora else "LoRA", ", ".join(workload.lora_targets)
    dropout = f" with dropout {workload.lora_dropout:g}" if workload.lora_dropout else ""
    names = (
        ""
        if _all(workload.lora_targets)
        else ", and name `target_modules` as your model does (they have Llama's names)"
    )
    return [
        f"`{OWN_PROGRAM}` trains {kind} adapters of rank {workload.lora_rank} on {targets}"
        f"{dropout}: `get_peft_model` with peft's `LoraConfig.from_pretrained` of this folder. Add "
        f"`lora_alpha` to `adapter_config.json`{names}."
    ]


def _all(targets: tuple[LoraTarget, ...]) -> bool:
    return set(targets) == set(get_args(LoraTarget))


def _frozen_base(job: BatchJob) -> File:
    """`quantization_config.json`: the base in 4 or 8 bits, as bitsandbytes stores it."""
    workload = job.workload
    config: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    if workload.base_format != "int8":
        computes = _COMPUTES[workload.precision]
        config = {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": workload.base_format == "nf4-double",
            "bnb_4bit_compute_dtype": computes,
            # what is sharded beside the adapters has to have their type
            "bnb_4bit_quant_storage": computes if job.layout.shards_weights else "uint8",
        }
    purpose = "the frozen base, as transformers and bitsandbytes load it"
    return File("quantization_config.json", purpose, json_text(config))
