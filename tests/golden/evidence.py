"""What is read of logs and of tables of runs, and what comparisons and scores say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import planner.app
from planner import Layout
from planner.describe.workload import Workload
from planner.evidence.backtest import score
from planner.evidence.learning import change_by_experience, learn_from_text
from planner.evidence.logs.comparison import compare, comparison_dict, comparison_text
from planner.evidence.logs.log_job import read_job
from planner.evidence.runs.run_files import runs_from_text
from planner.show.measured_runs import lessons_dict
from tests.descriptions import scenario
from tests.evidence.logs import test_logs as logs
from tests.evidence.logs.texts import read_log_text
from tests.golden.figures import RUNS

EXAMPLE = Path(planner.app.__file__).parent / "views" / "runs" / "example_runs.csv"

_TIMES = [9.0, 2.2, 2.5, 2.31, 2.28, 2.3, 2.35, 2.29]
_MILLISECONDS = [1e3 * time for time in _TIMES]
_TOKENS = 64 * 4096
JOBS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # a log, the layout of its run, and what the log does not say
    "wordplay": (
        logs.WORDPLAY
        + "".join(
            logs.WORDPLAY_STEP.format(i=i, dt=dt, tps=262144 / dt, each=65536 / dt)
            for i, dt in enumerate((0.9, 0.282, 0.306, 0.285, 0.286, 0.284, 0.285), 1)
        ),
        {"dp": 4},
        {},
    ),
    "megatron": (
        logs.MEGATRON_MEMORY + logs._many(logs.MEGATRON, "ms", _MILLISECONDS),
        {"dp": 8, "tp": 2, "sequence_parallel": True, "zero_stage": 1, "grad_accumulation": 16},
        {"model": "llama-3.2-1b", "framework": "megatron-lm", "sequence_length": 2048},
    ),
    "torchtitan": (
        logs._many(logs.TORCHTITAN, "tps", [round(_TOKENS / time / 16) for time in _TIMES]),
        {"dp": 16, "zero_stage": 3, "micro_batch": 4, "recompute": "full"},
        {"model": "llama-3-8b", "sequence_length": 4096},
    ),
    "nanotron": (
        logs._many(logs.NANOTRON, "ms", _MILLISECONDS),
        {"dp": 4, "pp": 2, "schedule": "1f1b", "zero_stage": 1, "grad_accumulation": 256},
        {"model": "llama-3.2-1b", "sequence_length": 1024},
    ),
}


def compared(name: str) -> dict[str, Any]:
    """Return the comparison of a log with its estimate, as data and as text."""
    text, layout, options = JOBS[name]
    log = read_log_text(text, f"{name}.log")
    found = compare(log, read_job(log, "polaris", {"layout": layout}, **options))
    return {"data": comparison_dict(found), "text": comparison_text(found).splitlines()}


def scored() -> dict[str, Any]:
    """Return the scores of the example's runs, by source and model."""
    return score(runs_from_text(EXAMPLE.read_text(), "example")).to_json(("source", "model"))


def learned() -> dict[str, Any]:
    """Return what three runs teach of a layout that nobody measured."""
    lessons = learn_from_text(RUNS, "runs.csv")
    job = Workload(sequence_length=4096, global_batch=64)
    asked = scenario("llama-3-8b", "fsdp2", "polaris", **job.model_dump(exclude_unset=True))
    found = planner.estimate(
        "llama-3-8b",
        "polaris",
        Layout(dp=8, tp=2, zero_stage=3, micro_batch=2, grad_accumulation=4),
        workload=job,
        framework="fsdp2",
        experience=lessons.experience,
    )
    change = change_by_experience(replace(asked, experience=lessons.experience), found)
    return lessons_dict(lessons, change)


def evidence() -> dict[str, Any]:
    """Return everything that is kept."""
    return {**{name: compared(name) for name in JOBS}, "scores": scored(), "lessons": learned()}
