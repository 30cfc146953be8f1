"""What is legal, how a layout is classed and refused, and what is offered for awkward jobs."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import planner
from planner.choose.jobs.job_spec import JobSpec
from planner.choose.legality import RULES, Rule
from planner.choose.planning import plan_job
from planner.choose.search.expected_time import degree_factors
from planner.choose.search.layout_classes import (
    NUM_CLASSES,
    classify_layouts,
    time_limits_s,
)
from planner.choose.search.recommendation import setup_effort
from planner.choose.verdicts.layout_words import parse_layout
from planner.choose.verdicts.why_not import why_not
from planner.cost.arrays import Int
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import names
from planner.describe.layout import OFFLOAD, RECOMPUTE, RECOMPUTE_MODULES, SCHEDULES, Layout
from planner.describe.workload import Workload
from planner.errors import PlannerError
from planner.validate.trace.limits import check_traceable
from tests.descriptions import scenario

SCENARIOS: tuple[dict[str, Any], ...] = (
    {"model": "llama-3-8b", "machine": "polaris", "sequence_length": 4096},
    {"model": "mixtral-8x7b", "machine": "dgx-h100", "sequence_length": 1536, "attention": "eager"},
    {"model": "gpt2", "machine": "laptop", "sequence_length": 1000, "lora_rank": 8},
    {"model": "vit-h-14", "machine": "polaris", "sequence_length": 257},
    {"model": "resnet-50", "machine": "polaris", "sequence_length": 1, "ramp": "1B:24,2B:30"},
    {"model": "mixtral-8x7b", "machine": "vsc-5", "expert_imbalance": 3.0},
)
SWITCHES = ("fsdp2+optimizer-in-backward", "megatron-lm+tp-comm-overlap")
BASES: tuple[dict[str, Any], ...] = (
    {"dp": 4, "zero_stage": 3, "grad_accumulation": 16},
    {"dp": 2, "tp": 4, "grad_accumulation": 32},
    {"dp": 2, "pp": 4, "schedule": "1f1b", "grad_accumulation": 32},
    {"dp": 4, "cp": 2, "zero_stage": 2, "grad_accumulation": 16},
    {"dp": 8, "ep": 4, "zero_stage": 1, "grad_accumulation": 8},
    {"tp": 2, "pp": 2, "dp": 2, "schedule": "1f1b", "grad_accumulation": 32},
)
VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("dp", "cp", "ulysses", "ep"), (1, 2, 3, 4, 8)),
    "tp": (1, 2, 3, 4, 5, 8, 16),
    "pp": (1, 2, 3, 4, 8, 16, 32, 33),
    "vpp": (1, 2, 3, 4, 8, 16),
    "dp_shard": (0, 1, 2, 4),
    "etp": (0, 1, 2, 4),
    "reshard": (0, 1, 2, 4),
    "zero_stage": (0, 1, 2, 3),
    "micro_batch": (1, 2, 3, 4),
    "grad_accumulation": (1, 2, 3, 4, 8, 16, 64),
    "tiles": (1, 2, 4),
    "recompute_layers": (0, 1, 2, 40),
    "recompute_every": (1, 2, 40),
    "sequence_parallel": (False, True),
    "offload_activations": (False, True),
    "embedding_slots": (-1, 0, 1),
    "head_slots": (-1, 0, 1, 2),
    "first_layers": (0, 1, 2, 8, 40),
    "last_layers": (0, 1, 2, 8, 40),
    "recompute": RECOMPUTE,
    "offload": OFFLOAD,
    "schedule": SCHEDULES,
    "recompute_modules": ((), *((name,) for name in RECOMPUTE_MODULES)),
}


@functools.cache
def random_layouts(count: int = 3000) -> Layouts:
    """Random layouts: plain ones with up to three other fields, legal or not."""
    draw, found = random.Random(20), list[Layout]()
    while len(found) < count:
        fields = draw.sample(sorted(VALUES), draw.randint(0, 3))
        changes = {name: draw.choice(VALUES[name]) for name in fields}
        with contextlib.suppress(PlannerError):  # no layout at all
            found.append(Layout(**{**draw.choice(BASES), **changes}))
    return Layouts.stack(found)


def _breaks(rule: Rule, asked: Scenario, layouts: Layouts) -> Int:
    return np.flatnonzero(~np.broadcast_to(rule.holds(asked, layouts), len(layouts)))


def legality() -> dict[str, dict[str, int]]:
    """Number of random layouts that break each rule, by framework and model."""
    layouts = random_layouts()
    found = {}
    for name in (*names("framework"), *SWITCHES):
        for fields in SCENARIOS:
            asked = scenario(framework=name, **fields)
            broken = {}
            for number, rule in enumerate(RULES):
                count = len(_breaks(rule, asked, layouts))
                broken |= {str(number): count} if count else {}
            found[f"{name} {fields['model']} {fields['machine']}"] = broken
    return found


def messages() -> dict[str, list[str]]:
    """Messages of every rule that random layouts break, a few of each."""
    layouts, found = random_layouts(), dict[str, list[str]]()
    for fields in SCENARIOS:
        for name in (*names("framework"), *SWITCHES):
            asked = scenario(framework=name, **fields)
            for number, rule in enumerate(RULES):
                said = found.setdefault(f"{number} {rule.reason}", [])
                for row in _breaks(rule, asked, layouts)[: max(8 - len(said), 0)]:
                    said.append(rule.message(asked, layouts[int(row)]))
    return found


def classes() -> dict[str, list[float | str]]:
    """Sums of factors and effort over random layouts, and how many are of each class."""
    layouts, found = random_layouts(), dict[str, list[float | str]]()
    fastest_s = np.linspace(2.0, 1.0, NUM_CLASSES)
    found["limits"] = time_limits_s(fastest_s, 1.05, 1.2)[::8].tolist()
    for fields in SCENARIOS:
        for name in ("fsdp2", "megatron-lm", "megatron-deepspeed"):
            asked: Scenario = scenario(framework=name, **fields)
            factors = degree_factors(asked, layouts)
            numbers, counts = np.unique(classify_layouts(asked, layouts), return_counts=True)
            found[f"{name} {fields['model']} {fields['machine']}"] = [
                *(float(cause.sum()) for cause in factors.values()),
                float(setup_effort(layouts).sum()),
                *(f"{number}: {count}" for number, count in zip(numbers, counts, strict=True)),
            ]
    return found


AWKWARD: dict[str, tuple[str, str, int, dict[str, int]]] = {
    "odd-batch": ("gpt2", "polaris", 3, {"global_batch": 50}),
    "odd-length": ("gpt2-xl", "vsc-5", 2, {"global_batch": 20, "sequence_length": 1000}),
    "few-sequences": ("gpt2", "polaris", 4, {"global_batch": 6}),
    "prime-nodes": ("llama-3.2-1b", "polaris", 5, {"global_batch": 64, "sequence_length": 2048}),
    "nothing-fits": ("llama-3.1-405b", "vsc-5", 3, {"global_batch": 7}),
    "part-of-a-node": ("gpt2", "workstation-4x4090", 1, {"global_batch": 6}),
    "wasted": ("gpt2", "dgx-a100", 16, {"global_batch": 128, "sequence_length": 256}),
}


def offers() -> dict[str, Any]:
    """Alternatives and notes of jobs that do not divide well, or waste nodes."""
    found = {}
    for name, (model, machine, nodes, batch) in AWKWARD.items():
        workload = Workload.described({"sequence_length": 1024, **batch})
        answer = planner.plan(model, machine, nodes=nodes, workload=workload, frameworks=_FEW)
        found[name] = {
            "plan": [answer.nodes, answer.num_devices, answer.workload.global_batch],
            "alternatives": [
                [each.kind, each.nodes, each.devices, each.global_batch, each.sentence]
                for each in answer.alternatives
            ],
            "notes": [*answer.notes, answer.scale_note],
            "fixes": [[each.name, each.why, each.fix] for each in answer.strategies],
        }
    return found


_FEW = ("fsdp2", "deepspeed", "ddp")
REFUSED = (
    *("dp2", "dp2 zero3", "tp2", "pp2", "dp2 zero3 offload all-cpu", "tp2 zero1", "cp2"),
    *("dp4", "dp2 mb64x1", "dp2 mb1x32 zero2", "tp2 pp2", "dp2 zero3 full recompute"),
    *("dp2 zero2 offload optimizer-cpu", "dp1", "pp2 vpp2", "tp2 sp", "dp2 zero3 4 tiles"),
)


def verdicts() -> dict[str, list[str]]:
    """What speaks against layouts of a small job."""
    found, workload = {}, Workload(sequence_length=1024, global_batch=64)
    for model in ("gpt2-xl", "gpt2"):
        job = JobSpec(model, "vsc-5", nodes=1, workload=workload)
        plan = plan_job(job, top=5)
        for text in REFUSED:
            answer = why_not(job, plan, parse_layout(text))
            found[f"{model} {text}"] = [line.text for line in answer.lines]
    return found


TRACED: tuple[dict[str, Any], ...] = (
    {"model": "llama-3-8b", "framework": "fsdp2"},
    {"model": "llama-3-8b", "framework": "fsdp2+chunked-loss=8"},
    {"model": "llama-2-7b", "framework": "fsdp2", "lora_rank": 8, "base_format": "nf4"},
    {"model": "mixtral-8x7b", "framework": "fsdp2"},
    {"model": "deepseek-v2", "framework": "fsdp2+chunked-loss=2", "frozen": ("embedding",)},
    {"model": "gemma-2-27b", "framework": "fsdp2+chunked-loss=2", "precision": "fp32"},
    {"model": "bert-large", "framework": "fsdp2+bf16-moments", "sequence_length": 512},
    {"model": "gpt2", "framework": "fsdp2+optimizer-in-backward", "dropout": 0.1},
    {"model": "gpt2", "framework": "megatron-lm", "optimizer": "sgd"},
)


def traced() -> dict[str, dict[str, int]]:
    """How many random layouts cannot be traced, by reason."""
    layouts, found = list(random_layouts())[::5], dict[str, dict[str, int]]()
    for fields in TRACED:
        asked = scenario(machine="laptop", **{"sequence_length": 1024, **fields})
        counts = found.setdefault(" ".join(map(str, fields.values())), {})
        for layout in layouts:
            reason = _untraced(asked, layout)
            counts[reason] = counts.get(reason, 0) + 1
    return found


def _untraced(asked: Scenario, layout: Layout) -> str:
    try:
        check_traceable(asked, layout, layout.pp // 2)
    except PlannerError as error:
        return str(error).replace(str(layout), "it")
    return "traced"


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "legality": legality,
    "messages": messages,
    "classes": classes,
    "offers": offers,
    "traced": traced,
    "verdicts": verdicts,
}


def choices(kind: str) -> dict[str, Any]:
    """All of one kind, each under the name of the kind and its own."""
    return {f"{kind} {name}": found for name, found in KINDS[kind]().items()}


def every_choice() -> dict[str, Any]:
    """Choices of every kind."""
    return {name: found for kind in KINDS for name, found in choices(kind).items()}
