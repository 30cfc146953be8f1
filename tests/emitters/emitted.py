"""Emitted: files of one layout or of a plain job, for the tests of what is written."""

from __future__ import annotations

import subprocess
from typing import Any

import planner
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.emitters import emit

Files = dict[str, str]


def files_of(
    model: str,
    machine: str | Machine,
    nodes: int,
    layout: Layout,
    framework: str | Framework,
    *,
    sequence_length: int = 1024,
    steps: int | None = None,
    queue: str = "",
    benchmark: bool = False,
    **workload: Any,
) -> Files:
    """Files of one layout, whether it fits or not."""
    described = load_model(model)
    place = machine if isinstance(machine, Machine) else load_machine(machine)
    job = planner.Workload(
        sequence_length=sequence_length, global_batch=layout.global_batch, **workload
    )
    runs = framework if isinstance(framework, Framework) else load_framework(framework)
    found = planner.estimate(described, place, layout, workload=job, framework=runs)
    plan = plan_of(described.name, place.name, nodes, job)
    return emit(
        plan,
        found,
        model=described,
        machine=place,
        framework=runs,
        steps=steps,
        queue=queue,
        benchmark=benchmark,
    )


def plan_of(model: str, machine: str, nodes: int, workload: planner.Workload) -> planner.Plan:
    """A plan without a search: only its question."""
    return planner.Plan(
        model, 0, machine, nodes, 0, workload, 0, ranked=(), recommended=None, strategies=(),
        dropped=(), notes=(), queues=(),
    )  # fmt: skip


def place_files(
    name: str | Machine,
    framework: str = "deepspeed",
    nodes: int = 2,
    model: str = "gpt2",
    **options: Any,
) -> Files:
    """Files of a plain job on a machine."""
    machine = name if isinstance(name, Machine) else load_machine(name)
    nodes = 1 if machine.scheduler.kind == "none" else min(nodes, int(machine.num_nodes.value))
    precision = next(p for p in ("bf16", "fp16", "fp32") if p in machine.device.peak_flop_per_s)
    zero = max(load_framework(framework).zero_stages)
    ranks = nodes * machine.node.num_devices
    if framework == "accelerate" and ranks == 1:
        zero = 0
    layout = Layout(dp=ranks, zero_stage=zero)
    return files_of(model, machine, nodes, layout, framework, precision=precision, **options)


def scripts(files: Files) -> Files:
    """The shell scripts among files."""
    return {name: text for name, text in files.items() if name.endswith(".sh")}


def run_on(text: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command with a text on its standard input."""
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
