"""Every part of time and memory of random layouts, as sums over those that are legal.

A step of one layout uses a part of the rules; thousands use nearly all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from planner.choose.legality import legal_layouts
from planner.cost.estimate import Estimates, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import memory_outlook, step_outlook
from planner.describe.catalogue import names
from planner.describe.training.training_run import Checkpoints
from planner.training.resilience.checkpoints import checkpoint_of
from planner.training.resilience.start import start_up
from tests.descriptions import scenario
from tests.golden.choices import SWITCHES, random_layouts

JOBS: tuple[dict[str, Any], ...] = (
    {"model": "llama-3-8b", "machine": "polaris"},
    {"model": "mixtral-8x7b", "machine": "dgx-h100", "precision": "fp8"},
    {"model": "gpt2-xl", "machine": "vsc-5", "attention": "eager", "sequence_length": 1024},
    {"model": "deepseek-v2", "machine": "aurora", "optimizer": "muon"},
    {"model": "llama-2-70b", "machine": "frontier", "optimizer": "adafactor"},
    {"model": "gpt-oss-20b", "machine": "dgx-gb200", "sequence_length": 8192},
    {"model": "bert-large", "machine": "summit", "precision": "fp16", "sequence_length": 512},
    {"model": "llama-3-70b", "machine": "alps", "lora_rank": 16},
    {"model": "vit-h-14", "machine": "lumi-g", "precision": "fp32", "sequence_length": 257},
    {"model": "qwen3-30b-a3b", "machine": "mi300x-node", "expert_imbalance": 1.5},
    {"model": "gemma-2-27b", "machine": "jean-zay-v100", "precision": "fp16"},
    {"model": "resnet-50", "machine": "dgx-1v", "precision": "fp16", "sequence_length": 1},
    {"model": "mt5-3b-nemo", "machine": "dgx-a100", "precision": "tf32", "dropout": 0.1},
    {"model": "falcon-40b", "machine": "workstation-4x4090", "optimizer": "adam-8bit"},
    {"model": "llama-4-scout", "machine": "mn5-acc", "document_lengths": (700, 2500)},
    {"model": "gpt2", "machine": "t4-node", "frozen": ("embedding",), "precision": "fp16"},
    {"model": "llama-3.1-8b", "machine": "eos", "lora_rank": 8, "lora_targets": ("query", "up")},
)


def cases() -> Iterator[tuple[str, Scenario]]:
    """Each framework that runs it with some of the jobs, in turn."""
    frameworks = (*names("framework"), *SWITCHES)
    for number, job in enumerate(JOBS):
        for framework in frameworks[number % 3 :: 3]:
            asked = scenario(framework=framework, **job)
            if not asked.framework.refuses(asked.machine, asked.workload, asked.model):
                yield f"{framework} {job['model']} {job['machine']}", asked


def sums() -> dict[str, dict[str, float]]:
    """Sums by part over the legal layouts of every case."""
    found = {}
    for name, asked in cases():
        layouts = legal_layouts(asked, random_layouts())
        if len(layouts):
            found[name] = _sums(asked, estimate_layouts(asked, layouts))
    return found


def _sums(asked: Scenario, estimates: Estimates) -> dict[str, float]:
    layouts = estimates.layouts
    step = step_outlook(asked, layouts, estimates.time_parts_s)
    memory = memory_outlook(asked, layouts)
    figures = {
        "layouts": np.ones(len(layouts)),
        "fits": estimates.fits,
        **{f"{part} s": seconds for part, seconds in estimates.time_parts_s.items()},
        **{f"{part} B": each for part, each in estimates.memory_parts_bytes.items()},
        **{f"host {part} B": each for part, each in estimates.host_parts_bytes.items()},
        "disk B": estimates.disk_bytes,
        "mfu": estimates.mfu,
        "risk": estimates.out_of_memory_probability,
        "step spread": step.spread,
        "memory spread": memory.spread,
        **_saved(asked, layouts),
        **{f"start {part} s": each for part, each in start_up(asked, layouts).items()},
    }
    return {name: float(np.sum(each)) for name, each in figures.items() if np.any(each)}


def _saved(asked: Scenario, layouts: Layouts) -> dict[str, Any]:
    """Checkpoints of every kind."""
    kinds = {
        "": Checkpoints(),
        "weights": Checkpoints(contents="weights", asynchronous=True, share=0.5),
        "one file": Checkpoints(full=True),
    }
    found: dict[str, Any] = {}
    for kind, options in kinds.items():
        saved = checkpoint_of(asked, layouts, options)
        found |= {f"checkpoint {kind} {part} B": each for part, each in saved.parts_bytes.items()}
        for name in ("files", "writers", "most_bytes", "blocking_s", "behind_s"):
            found[f"checkpoint {kind} {name}"] = getattr(saved, name)
    return found
