"""Checkpoints: published sizes, who writes, what waits, and edges."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.whole import saves
from planner import Layout, Workload, load_framework, load_machine, load_model
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.training.training_run import Checkpoints
from planner.errors import DescriptionError, UnknownNameError
from planner.training.resilience.checkpoints import (
    checkpoint_of,
    constants,
    loading_s,
    nodes_of,
    saved_bytes,
    transfer_bounds_s,
    transfer_s,
)


def job(framework: str = "fsdp2", machine: str = "polaris", **workload: object) -> Scenario:
    described = Workload.described(workload)
    model = load_model("llama-3-8b")
    return Scenario(model, load_machine(machine), described, load_framework(framework))


def per_parameter(scenario: Scenario, **layout: int) -> float:
    found = saved_bytes(scenario, Layouts.of(Layout.described(layout)))
    return float(sum(found.values())) / scenario.model.num_params


SHARDED = Layouts.of(Layout(dp=64, zero_stage=3))


def test_bloom_is_as_large_as_it_was() -> None:
    # bigscience train/tr11-176B-ml/README.md: 329 GB and 2.3 TB, as du counts
    scenario, layouts = saves.bloom()
    weights = float(saved_bytes(scenario, layouts, "weights")["weights"])
    assert weights / 2**30 == pytest.approx(329, rel=0.003)
    assert float(checkpoint_of(scenario, layouts).total_bytes) / 2**40 == pytest.approx(
        2.3, rel=0.03
    )


def test_trillion_parameters_are_as_large_as_they_were() -> None:
    # Narayanan et al. 2021, arXiv:2104.04473, section 5.10: 13.8 TB, saved at 273 GB/s
    saved = checkpoint_of(*saves.trillion())
    assert float(saved.total_bytes) / 1e12 == pytest.approx(13.8, rel=0.03)
    assert float(saved.blocking_s) == pytest.approx(13.8e12 / 273e9, rel=0.25)


def test_mt_nlg_takes_42_minutes_over_a_slow_link() -> None:
    # GEMINI, SOSP 2023: 42 minutes at 20 Gb/s, trained with ZeRO-3
    scenario = saves.scenario("mt-nlg-530b", "aws-p4d", "deepspeed", "fp16")
    states = saved_bytes(scenario, Layouts.of(Layout(dp=128, zero_stage=3)))
    assert float(sum(states.values())) / 2.5e9 / 60 == pytest.approx(42, rel=0.02)


def test_one_rank_of_wordplay_writes_as_long_as_in_its_log() -> None:
    # checkpoints of 1.7 to 2.0 s to Eagle; a rate of 0.7 GB/s is a bound of what was measured
    saved = checkpoint_of(*saves.wordplay())
    assert float(saved.blocking_s) == pytest.approx(1.85, rel=0.2)
    assert (float(saved.files), float(saved.writers)) == (1.0, 1.0)


def test_eight_ranks_write_53_gb_as_long_as_they_did() -> None:
    # awslabs/awsome-distributed-ai#1225: 8.3 s to a local disk
    machine, rate = load_machine("dgx-b300"), constants().writer_bytes_per_s.value
    found = transfer_s(machine, Checkpoints(), 53e9, 53e9 / 8, 1, process_bytes_per_s=rate)
    assert float(found) == pytest.approx(8.3, rel=0.2)


@pytest.mark.parametrize(
    ("framework", "precision", "layout", "expected"),
    [
        ("ddp", "bf16", {"dp": 4}, 4 + 8),
        ("ddp", "fp32", {"dp": 4}, 4 + 8),
        ("fsdp2", "bf16", {"dp": 4, "zero_stage": 3}, 4 + 8),
        ("fsdp2", "fp32", {"dp": 4, "zero_stage": 3}, 4 + 8),
        ("deepspeed", "bf16", {"dp": 4, "zero_stage": 2}, 2 + 4 + 8),
        ("deepspeed", "bf16", {"dp": 4, "zero_stage": 3}, 4 + 8),
        ("megatron-lm", "bf16", {"tp": 4, "dp": 2, "zero_stage": 1}, 2 + 4 + 8),
    ],
)
def test_bytes_per_parameter(
    framework: str, precision: str, layout: dict[str, int], expected: int
) -> None:
    scenario = job(framework, precision=precision)
    assert per_parameter(scenario, **layout) == pytest.approx(expected)


def test_other_optimizers_save_other_states() -> None:
    assert per_parameter(job(optimizer="sgd"), dp=4, zero_stage=3) == pytest.approx(4)
    assert per_parameter(job(optimizer="lion"), dp=4, zero_stage=3) == pytest.approx(8)


def test_adapters_are_saved_alone() -> None:
    tuned = job("ddp", lora_rank=16)
    assert per_parameter(tuned, dp=4) < 0.01 * 12


def test_weights_alone_are_those_that_compute() -> None:
    for precision, each in (("bf16", 2), ("fp32", 4)):
        scenario = job(precision=precision)
        found = saved_bytes(scenario, SHARDED, "weights")
        assert float(found["weights"]) == each * scenario.model.num_params
        assert float(found["moments"]) == 0


def test_writers_of_each_kind() -> None:
    # 4 ranks hold weights, 32 states; DeepSpeed writes both kinds of files
    found = checkpoint_of(job("megatron-lm"), Layouts.of(Layout(tp=4, dp=8, zero_stage=1)))
    assert (float(found.writers), float(found.files)) == (32.0, 36.0)
    whole = float(found.parts_bytes["weights"]) / 4
    states = float(found.total_bytes - found.parts_bytes["weights"]) / 32
    assert float(found.most_bytes) == pytest.approx(whole + states)
    # without sharded states replicas write nothing
    plain = checkpoint_of(job("megatron-lm"), Layouts.of(Layout(tp=4, dp=8)))
    assert float(plain.writers) == 4
    assert float(plain.total_bytes) == pytest.approx(float(found.total_bytes))


def test_scalar_and_array_agree() -> None:
    scenario = job()
    many = checkpoint_of(scenario, Layouts.broadcast(dp=[8, 64, 512], zero_stage=3))
    for index, dp in enumerate((8, 64, 512)):
        one = checkpoint_of(scenario, Layouts.of(Layout(dp=dp, zero_stage=3)))
        assert float(one.blocking_s) == float(many.write_s[index])
        assert float(one.total_bytes) == float(many.total_bytes[index])
    assert many.take(1).write_s == many.write_s[1]


def test_more_ranks_never_write_longer() -> None:
    times = checkpoint_of(job(), Layouts.broadcast(dp=[4, 8, 64, 512, 2240], zero_stage=3)).write_s
    assert np.all(np.diff(times) <= 0)
    # no faster than the file system as a whole
    assert times[-1] >= 12 * job().model.num_params / 650e9


def test_the_slowest_bound_counts() -> None:
    machine = load_machine("polaris")
    for most, total, nodes, name in (
        (70e9, 70e9, 1, "process"),
        (1e9, 1e12, 2, "interfaces"),
        (1e9, 1e14, 560, "file_system"),
    ):
        found = transfer_bounds_s(
            machine, Checkpoints(), total, most, nodes, process_bytes_per_s=0.7e9
        )
        assert max(found, key=lambda one: float(found[one])) == name
        moved = transfer_s(machine, Checkpoints(), total, most, nodes, process_bytes_per_s=0.7e9)
        assert float(moved) == float(found[name])


def test_a_share_of_the_file_system_takes_longer() -> None:
    layouts = Layouts.of(Layout(dp=2240, zero_stage=3))
    whole, tenth = (checkpoint_of(job(), layouts, Checkpoints(share=s)) for s in (1.0, 0.001))
    assert float(tenth.blocking_s) > float(whole.blocking_s)


def test_asynchronous_ones_wait_for_the_copy_alone() -> None:
    plain = checkpoint_of(job(), SHARDED)
    found = checkpoint_of(job(), SHARDED, Checkpoints(asynchronous=True))
    link = job().machine.node.host_link_bytes_per_s.value
    copy = float(found.most_bytes) / link
    assert float(found.blocking_s) == pytest.approx(copy + constants().staging_s.value)
    assert float(found.behind_s) >= float(plain.blocking_s) - copy
    assert float(plain.behind_s) == 0


@pytest.mark.parametrize("storage", ["file-system", "local-disk"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_waited_for_and_what_is_behind_are_the_whole(
    storage: str, asynchronous: bool
) -> None:
    how = Checkpoints.described({"storage": storage, "asynchronous": asynchronous})
    found = checkpoint_of(job(), SHARDED, how)
    assert float(found.write_s) == float(found.blocking_s + found.behind_s)


def test_local_disks_are_drained_behind_steps() -> None:
    found = checkpoint_of(job(), SHARDED, Checkpoints(storage="local-disk"))
    assert float(found.behind_s) > 0
    bare = job(machine="juwels-booster")
    with pytest.raises(DescriptionError, match="no local disk"):
        checkpoint_of(bare, SHARDED, Checkpoints(storage="local-disk"))


def test_loading_by_way() -> None:
    scenario = job()
    ways = {way: float(loading_s(scenario, SHARDED, way)) for way in ("sharded", "rank-0")}
    assert ways["sharded"] < ways["rank-0"] / 50
    assert float(loading_s(scenario, SHARDED, "none")) == 0
    # replicas get what rank 0 made
    assert float(loading_s(job("ddp"), Layouts.of(Layout(dp=64)), "none")) > 0


def test_file_systems_by_name() -> None:
    machine = load_machine("lumi-g")
    first = machine.file_system()
    assert first is not None
    assert first.name == "lumi-f"
    slower = machine.file_system("lumi-p")
    assert slower is not None
    with pytest.raises(UnknownNameError, match="file system"):
        machine.file_system("lumi-x")
    assert load_machine("workstation-1x4090").file_system() is None


def test_a_part_of_a_node_counts_as_one() -> None:
    layouts = Layouts.stack([Layout(dp=1), Layout(dp=3), Layout(dp=4), Layout(dp=5)])
    assert nodes_of(load_machine("polaris"), layouts).tolist() == [1, 1, 1, 2]
