"""What notebooks show of answers and descriptions: the words and cells of their pages, in order."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import planner
from planner import Layout, Workload, ask
from planner.evidence.learning import learn_from_text
from tests.golden.figures import RUNS

_JOB = Workload(sequence_length=1024, global_batch=64, tokens=2e9)
_WHERE = {"nodes": 2, "workload": _JOB, "frameworks": "fsdp2"}
_MANY_STAGES = Layout(pp=20, schedule="1f1b", zero_stage=1, grad_accumulation=16)
PAGES: dict[str, Callable[[], Any]] = {
    "plan": lambda: planner.plan("gpt2-xl", "polaris", **_WHERE),
    "plan over": lambda: planner.plan("llama-3.1-70b", "polaris", **_WHERE),
    "estimate": lambda: planner.estimate(
        "llama-3-8b",
        "polaris",
        Layout(dp=4, tp=4, pp=2, sequence_parallel=True, schedule="1f1b", grad_accumulation=16),
        framework="megatron-lm",
    ),
    "step of many stages": lambda: planner.simulate(
        "llama-2-13b", "polaris", _MANY_STAGES, framework="megatron-lm"
    ),
    "sweep": lambda: planner.sweep(
        kind="estimate",
        models="gpt2",
        machines="polaris",
        layout={"tp": [1, 2, 3, 4], "zero_stage": [0, 3]},
        backend="sequential",
    ),
    "learned": lambda: learn_from_text(RUNS, "runs.csv"),
    **{
        f"model {name}": lambda name=name: planner.load_model(name)  # type: ignore[misc]
        for name in ("gpt2", "deepseek-v3", "bert-large", "t5-large", "vit-h-14", "resnet-50")
    },
    "machine": lambda: planner.load_machine("aurora"),
    "framework": lambda: planner.load_framework("megatron-lm+graphed-router"),
    "layout": lambda: _MANY_STAGES,
    "workload": lambda: _JOB.replaced(optimizer="muon", lora_rank=8),
    "scaling": lambda: ask.scaling(
        "gpt2", "polaris", most_nodes=4, workload=_JOB, frameworks="ddp"
    ),
    "batch": lambda: ask.batch("gpt2", "polaris", within=2.0, workload=_JOB, frameworks="ddp"),
    "zero": lambda: ask.zero("gpt2-xl", "polaris", **_WHERE),
    "sequence": lambda: ask.sequence("gpt2", "polaris", workload=_JOB, frameworks="ddp"),
    "memory": lambda: ask.memory("gpt2-xl", "polaris", **_WHERE),
}


def page(name: str) -> list[str]:
    """Return the words and cells of a page."""
    value = PAGES[name]()
    text = re.sub(r"<style.*?</style>", "", value._repr_html_(), flags=re.DOTALL)
    parts = [html.unescape(part).strip() for part in re.split(r"<[^>]*>", text)]
    return [part for part in parts if part]


def pages() -> dict[str, list[str]]:
    """Return everything that is kept."""
    return {name: page(name) for name in PAGES}
