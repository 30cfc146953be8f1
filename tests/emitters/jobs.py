"""Jobs: a plain batch job, for the tests of its scripts."""

from __future__ import annotations

import planner
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.emitters.batch_job import BatchJob
from tests.descriptions import scenario

__all__ = ["plain_job"]


def plain_job(name: str, steps: int = 1000, framework: str = "ddp") -> BatchJob:
    """GPT-2 with one sequence per device of one node."""
    machine = load_machine(name)
    layout = Layout(dp=machine.node.num_devices)
    precision = next(p for p in ("bf16", "fp16", "fp32") if p in machine.device.peak_flop_per_s)
    asked = scenario(
        "gpt2",
        framework,
        machine,
        sequence_length=1024,
        global_batch=layout.global_batch,
        precision=precision,
    )
    found = planner.estimate(
        asked.model, machine, layout, workload=asked.workload, framework=asked.framework
    )
    return BatchJob(asked, found, 1, steps)
