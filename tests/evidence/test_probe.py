"""Probes in synthetic worlds: what they promise, and what their logs say."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.choose.jobs.probe import Probe, ProbeRun
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.shards.layouts import Layouts
from planner.describe.machine import Machine
from planner.describe.workload import Workload
from planner.emitters.probe_files import probe_files
from planner.errors import CatalogueError
from planner.evidence.learning import Learned, change_by_experience, learn_from
from planner.job import Job

GIB = 2**30


def world(machine: Machine, rate: float, links: float) -> Machine:
    """Return a machine whose kernels and links have other rates than its profile says."""
    fields = machine.model_dump()
    for table, factor in (
        (fields["device"]["sustained_fraction"], rate),
        (fields["node"]["fabric"]["efficiency"], links),
    ):
        table["value"] = min(table["value"] * factor, 1.0)
    for network in (fields["network"], *fields["networks"]):
        curve = network["efficiency"]["fraction"]
        network["efficiency"]["fraction"] = [min(x * links, 1.0) for x in curve]
    return Machine.described(fields)


def true_step_s(run: ProbeRun | Probe, machine: Machine) -> float:
    """Step time of a run, or of a probe's job, on a machine [s]."""
    estimate = run.target if isinstance(run, Probe) else run.estimate
    scenario = run.job.scenario_of(estimate)
    scenario = replace(scenario, machine=machine.network_of(scenario.framework.family))
    return estimate_layouts(scenario, Layouts.stack([estimate.layout]))[0].step_time_s


def write_logs(probe: Probe, folder: Path, machine: Machine, memory: float = 1.0) -> None:
    """Write a probe's files, and logs as torchtitan would print them on a machine."""
    rng = np.random.default_rng(3)
    for name, text in probe_files(probe).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for number, run in enumerate(probe.runs, 1):
        tokens = run.job.workload.tokens_per_step / run.estimate.layout.world
        peak = memory * run.estimate.memory_bytes["total"] / GIB
        lines = [
            f"step: {step}  loss: 9.1  memory: {peak:.2f}GiB(50.00%)  "
            f"tps: {tokens / true_step_s(run, machine) * math.exp(rng.normal(0, 0.01)):,.0f}  "
            "tflops: 100.00  mfu: 30.00%"
            for step in range(1, 31)
        ]
        (folder / str(number) / "run.log").write_text("\n".join(lines) + "\n")


def corrected(probe: Probe, learned: Learned) -> Estimate:
    """Return the estimate of a probe's job after it was measured."""
    job = probe.job
    assert isinstance(job, Job)
    return job.replaced(experience=learned.experience).estimate(probe.target.layout)


def width(interval: tuple[float, float]) -> float:
    """Return the width of an interval in the logarithm."""
    return math.log(interval[1] / interval[0])


@functools.cache
def probes() -> tuple[Probe, ...]:
    """Probes of three jobs, of which each is planned once."""
    return tuple(_probes())


def _probes() -> Iterator[Probe]:
    for model, machine, nodes, batch in (
        ("llama-3-8b", "polaris", 16, 256),
        ("mistral-7b", "vsc-5", 4, 64),
        ("llama-3-70b", "alps", 32, 256),
    ):
        workload = Workload(sequence_length=4096, global_batch=batch)
        yield Job(model, machine, nodes=nodes, workload=workload, frameworks="fsdp2").probe()


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(0.8, 1.0), (1.0, 0.8), (0.9, 0.7), (1.1, 1.2), (1.0, 1.0)])
def test_the_interval_after_a_probe_is_narrower_and_contains_the_truth(
    rates: tuple[float, float], tmp_path: Path
) -> None:
    for probe in probes():
        folder = tmp_path / probe.job.model.name
        machine = world(probe.job.machine, *rates)
        write_logs(probe, folder, machine)
        answer = corrected(probe, learn_from(folder, machine=probe.job.machine))
        truth = true_step_s(probe, machine)
        low, high = answer.interval_step_time_s
        assert low < truth < high
        assert width((low, high)) < width(probe.target.interval_step_time_s)
        error, before = (abs(math.log(e.step_time_s / truth)) for e in (answer, probe.target))
        assert error < max(before, 0.02)


@pytest.mark.slow
def test_a_probe_brings_about_what_it_promised(tmp_path: Path) -> None:
    ratios = []
    for number, (rate, links) in enumerate([(0.9, 1.0), (1.0, 0.8)]):
        for probe in probes():
            folder = tmp_path / f"{number}-{probe.job.model.name}"
            write_logs(probe, folder, world(probe.job.machine, rate, links))
            answer = corrected(probe, learn_from(folder, machine=probe.job.machine))
            ratios.append(width(answer.interval_step_time_s) / width(probe.interval_s))
    assert 0.75 < np.median(ratios) < 1.1
    assert max(ratios) < 1.4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rates", "cause", "suspect"),
    [
        ((0.75, 1.0), "compute", "device.sustained_fraction of polaris (calibrated)"),
        ((1.0, 0.5), "traffic", "network.efficiency of polaris (measured)"),
    ],
)
def test_a_probe_tells_slow_kernels_from_slow_links(
    rates: tuple[float, float], cause: str, suspect: str, tmp_path: Path
) -> None:
    probe = probes()[0]
    write_logs(probe, tmp_path, world(probe.job.machine, *rates))
    learned = learn_from(tmp_path, machine=probe.job.machine)
    scenario = replace(probe.job.scenario_of(probe.target), experience=learned.experience)
    change = change_by_experience(scenario, corrected(probe, learned)).step_time
    assert change is not None
    assert max(change.by_cause, key=lambda name: change.by_cause[name]) == cause
    assert change.suspect == suspect


def test_a_probe_anchors_memory(tmp_path: Path) -> None:
    probe = probes()[0]
    write_logs(probe, tmp_path, probe.job.machine, memory=1.08)
    learned = learn_from(tmp_path, machine=probe.job.machine)
    assert learned.num_weighed == len(probe.runs)
    errors = [score.memory_error for score in learned.scores]
    assert all(error is not None and -0.15 < error < 0 for error in errors)


def test_a_run_that_failed_does_not_spoil_the_others(tmp_path: Path) -> None:
    probe = probes()[0]
    write_logs(probe, tmp_path, probe.job.machine)
    (tmp_path / "1" / "run.log").unlink()
    (tmp_path / "2" / "run.log").write_text("torch.OutOfMemoryError: CUDA out of memory\n")
    learned = learn_from(tmp_path, machine=probe.job.machine)
    assert [score.run.row_id for score in learned.scores] == ["3/run.log"]
    assert [run.row_id for run in learned.refused] == ["1/run.log", "2/run.log"]
    (tmp_path / "3" / "run.log").unlink()
    with pytest.raises(CatalogueError, match="holds no run with a step time"):
        learn_from(tmp_path, machine=probe.job.machine)
