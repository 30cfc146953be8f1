"""Known values of functions of `planner.training`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import planner
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.machine.machine import FileSystem, Machine
from planner.describe.training.training_run import (
    Charges,
    Checkpoints,
    Evaluation,
    Failures,
    Loader,
    StartUp,
)
from planner.describe.workload import Workload
from planner.training.data.input import (
    benchmark_dataset,
    cached_fraction,
    fill_epochs,
    input_time,
    node_read_rate,
    reread_fraction,
    stage_times,
    staging_time,
)
from planner.training.data.loader_changes import changes
from planner.training.energy import NodePower, energy_kwh, node_power
from planner.training.job_slot import planned_steps, walltime_text
from planner.training.resilience.checkpoints import (
    checkpoint_of,
    loading_s,
    saved_bytes,
    transfer_bounds_s,
)
from planner.training.resilience.failures import (
    consecutive_jobs,
    daly_interval_s,
    detection_s,
    expected_time_s,
    mean_time_between_failures_s,
    training_losses,
    young_interval_s,
)
from planner.training.resilience.start import communicators_s, imports_s, restart_s, start_up
from planner.training.steps import (
    evaluation_s,
    forward_s,
    generated_token_s,
    node_hours,
    training_time,
)
from planner.training.whole_training import Amount, TrainingPart, bill_training, sum_parts
from tests.descriptions import scenario as make_scenario


def test_node_read_rate() -> None:
    polaris = load_machine("polaris")
    assert (node_read_rate(polaris, np.array([1, 100]), polaris.file_system()) / 1e9).tolist() == [
        14.7,
        6.5,
    ]


def test_stage_times() -> None:
    job = load_machine("polaris"), np.array(100), np.array(4), np.array(2800)
    times = stage_times(*job, planner.load_dataset("unet3d"), Loader(), np.array(0.0))
    assert round(float(times["file system"]), 3) == 0.632


def test_reread_fraction() -> None:
    assert reread_fraction(np.array([4, 1]), np.array([2, 9])).tolist() == [0.25, 1.0]


def test_fill_epochs() -> None:
    assert [fill_epochs(nodes, 0.9) for nodes in (1, 2, 560)] == [1, 4, 1289]


def test_benchmark_dataset() -> None:
    # mlcommons/storage_results_v1.0 @64c2ce48, YanRongTech's unet3d_gen_1client_36h100.sh: 36 H100
    # on a host of 251 GB need 126,000 files, 17,203 GB, by 500 steps of 7; few steps: by memory
    memory = ("node.host_memory_bytes=251GiB",)
    host, unet3d = load_machine("dgx-h100", memory), planner.load_dataset("unet3d")
    grown = benchmark_dataset(host, 1, 36 * 7, unet3d)
    assert (grown.num_samples.value, grown.total_bytes // 2**30) == (126_000, 17_203)
    assert benchmark_dataset(host, 1, 7, unet3d).total_bytes == pytest.approx(5 * 251 * 2**30)


def test_cached_fraction() -> None:
    job = load_machine("polaris"), np.array(4.0), planner.load_dataset("unet3d")
    assert [
        float(part) for part in cached_fraction(*job, Loader(staging="local-disk"), np.array(2.0))
    ] == [1.0, 1.0]


def test_staging_time() -> None:
    job = load_machine("polaris"), np.array(10.0), planner.load_dataset("imagenet")
    loader = Loader(staging="local-disk", sharded=True)
    assert round(float(staging_time(*job, loader, np.array(5e9))), 1) == 2.9


def test_input_time() -> None:
    job = load_machine("polaris"), 100, 4, 2800, 0.636, planner.load_dataset("unet3d")
    time = input_time(*job, Loader(workers=8))
    assert (str(time.bound), round(float(time.delivery_s), 3)) == ("file system", 0.632)


def test_changes() -> None:
    job = load_machine("polaris"), 256, 4, 7168, 0.636, planner.load_dataset("unet3d")
    assert [change.name for change in changes(*job, Loader())][-2:] == ["local disk", "memory"]
    targets = int(file_system(job[0]).num_targets.value)
    for count, is_named in ((targets - 1, True), (targets, False)):
        named = [change.name for change in changes(*job, Loader(stripe_count=count))]
        assert ("stripes" in named) is is_named
    best = Loader(workers=999, prefetch=9, stripe_count=targets, sharded=True, staging="memory")
    assert not {"workers", "prefetch", "stripes", "shards", "memory"} & {
        change.name for change in changes(*job, best)
    }


def file_system(machine: Machine) -> FileSystem:
    """The file system that a loader reads from where none is named."""
    found = machine.file_system(Loader().file_system)
    assert found is not None
    return found


def test_node_power() -> None:
    assert round(node_power(load_machine("dgx-h100")).watts) == 7752


def test_energy_kwh() -> None:
    assert float(energy_kwh(1000.0, 2000.0, 1.2)) == 2400.0


def test_planned_steps() -> None:
    assert planned_steps(Workload(sequence_length=4096, global_batch=256, tokens=1e9)) == 954
    assert planned_steps(Workload(sequence_length=4096, global_batch=256, tokens=1.0)) == 1
    assert planned_steps(Workload(sequence_length=4096, global_batch=256)) == 1000


def test_walltime_text() -> None:
    assert walltime_text(5400) == "01:30:00"


def test_saved_bytes() -> None:
    job, layouts = make_scenario("gpt2-xl", "deepspeed"), Layouts.broadcast(zero_stage=[1, 3])
    assert (sum(saved_bytes(job, layouts).values()) / job.model.num_params).tolist() == [14.0, 12.0]


def test_transfer_bounds_s() -> None:
    job = load_machine("polaris"), Checkpoints(), 1e12, 1e9, 4
    bounds = transfer_bounds_s(*job, process_bytes_per_s=1e9)
    assert {name: round(float(seconds), 2) for name, seconds in bounds.items()} == {
        "process": 1.0,
        "interfaces": 5.0,
        "file_system": 1.54,
    }


def test_checkpoint_of() -> None:
    scenario = make_scenario(framework="fsdp2")
    sharded = checkpoint_of(scenario, Layouts.of(Layout(dp=64, zero_stage=3)))
    assert (float(sharded.total_bytes) / scenario.model.num_params, float(sharded.files)) == (
        12.0,
        64.0,
    )


def test_loading_s() -> None:
    job = make_scenario(framework="fsdp2"), Layouts.of(Layout(dp=64, zero_stage=3))
    assert [
        round(float(loading_s(*job, way))) for way in ("none", "sharded", "rank-0", "every-rank")
    ] == [0, 2, 140, 138]


def test_mean_time_between_failures_s() -> None:
    assert round(float(mean_time_between_failures_s(16_384)) / 3600, 1) == 3.1


def test_detection_s() -> None:
    assert (detection_s(Failures()), detection_s(Failures(detection_s=30, queue_s=120))) == (
        600.0,
        150.0,
    )


def test_young_interval_s() -> None:
    assert float(young_interval_s(50, 10_000)) == 1000.0


def test_daly_interval_s() -> None:
    assert round(float(daly_interval_s(50, 10_000)), 1) == 966.9


def test_expected_time_s() -> None:
    assert round(float(expected_time_s(1e6, 50, 1000, 10_000, 600))) == 1175566


def test_training_losses() -> None:
    month = training_losses(30 * 86400, write_s=40, mtbf_s=11_135, restart_s=900)
    assert (round(float(month.interval_s)), round(float(month.fraction), 3)) == (917, 0.846)


def test_consecutive_jobs() -> None:
    day = consecutive_jobs(86_400, wall_s=21_600, start_s=300, interval_s=1800)
    assert (float(day.jobs), float(day.ends_s)) == (5.0, 3600.0)
    short = consecutive_jobs(600, wall_s=21_600, start_s=300, interval_s=1800)
    assert (float(short.jobs), float(short.ends_s)) == (1.0, 0.0)


def test_imports_s() -> None:
    assert [round(float(imports_s(np.asarray(n), StartUp())), 1) for n in (8, 10_000)] == [
        51.0,
        489.6,
    ]


def test_communicators_s() -> None:
    assert [round(float(s), 1) for s in communicators_s(Layouts.broadcast(dp=[1, 8, 98_304]))] == [
        0.0,
        2.1,
        57.9,
    ]


def test_start_up() -> None:
    scenario = make_scenario(framework="fsdp2")
    parts = start_up(scenario, Layouts.of(Layout(dp=512, zero_stage=3)))
    assert {name: round(float(part), 1) for name, part in parts.items() if part} == {
        "launch": 0.2,
        "imports": 51.0,
        "communicators": 2.4,
    }


def test_restart_s() -> None:
    scenario = make_scenario(framework="fsdp2")
    assert round(float(restart_s(scenario, Layouts.of(Layout(dp=64, zero_stage=3)))), 1) == 655.5


def test_training_time() -> None:
    job = Workload(global_batch=64, sequence_length=1024, tokens=64 * 1024 * 1000)
    estimate = planner.estimate("gpt2", "polaris", Layout(dp=4, micro_batch=16), workload=job)
    assert round(training_time(job, estimate) / estimate.step_time_s, 6) == 1000.0


def test_node_hours() -> None:
    job = Workload(global_batch=64, sequence_length=1024)
    estimate = planner.estimate("gpt2", "polaris", Layout(dp=4, micro_batch=16), workload=job)
    assert round(node_hours(2, job, estimate) * 3600 / estimate.step_time_s, 6) == 2000.0


def test_forward_s() -> None:
    assert (
        forward_s({"forward": 1.0, "backward": 2.0, "tensor_parallel": 0.5, "optimizer": 0.1})
        == 1.25
    )


def test_generated_token_s() -> None:
    assert 0.0005 < generated_token_s(make_scenario("gpt2", "ddp")) < 0.01


def test_evaluation_s() -> None:
    job = make_scenario("gpt2", "ddp", global_batch=64), Layout(dp=4), {"forward": 0.1}
    assert [
        evaluation_s(*job, Evaluation(sequences=128, ranks=ranks)) for ranks in ("all", "first")
    ] == [0.2, 0.8]


def test_sum_parts() -> None:
    steps = TrainingPart("steps", Amount(100.0, 90.0, 120.0), with_steps=True)
    start = TrainingPart("start_up", Amount(20.0, 20.0, 35.0))
    assert sum_parts((steps, start)) == Amount(expected=120.0, low=110.0, high=145.0)


def test_bill_training() -> None:
    steps = TrainingPart("steps", Amount(3600.0, 1800.0, 7200.0))
    assert bill_training((steps,), 2, Charges(), None).node_hours == Amount(
        expected=2.0, low=1.0, high=4.0
    )


def test_bill_of_energy() -> None:
    steps = TrainingPart("steps", Amount(3600.0, 2700.0, 4500.0))
    power, charges = NodePower(1000.0, 1000.0, 1400.0, "rated"), Charges(pue=1.5, price_per_kwh=0.2)
    bill = bill_training((steps,), 2, charges, power)
    # 2 node-hours of 1 kW; a quarter less; a quarter and two fifths more, in quadrature
    above = 1 + math.hypot(0.25, 0.4)
    assert bill.energy_kwh is not None
    assert dataclasses.astuple(bill.energy_kwh) == pytest.approx((3.0, 2.25, 3.0 * above))
    assert bill.price is not None
    assert bill.price.expected == pytest.approx(0.6)
    nothing = TrainingPart("steps", Amount(0.0, 0.0, 0.0))
    assert bill_training((nothing,), 2, charges, power).energy_kwh == Amount(0.0, 0.0, 0.0)
