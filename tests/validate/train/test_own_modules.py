"""Own modules over tensor and pipeline ranks: planned, emitted, run, and equal to one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import planner
from planner import Layout, Workload, load_framework, load_machine, load_model
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.describe.model.model import Model
from planner.emitters.batch_job import BatchJob
from planner.emitters.files import files_of
from planner.errors import EmitError, LayoutError
from planner.validate.train.run import RunOptions, case_line, run

torch = pytest.importorskip("torch", exc_type=ImportError)
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
FILE = Path(__file__).with_name("own_modules.py")


def model(name: str) -> Model:
    return load_model(f"{FILE}:{name}")


def estimate(name: str, layout: Layout, framework: str = "fsdp2") -> Any:
    job = Workload(sequence_length=1, global_batch=layout.global_batch, precision="fp32")
    return planner.estimate(model(name), "polaris", layout, workload=job, framework=framework)


@pytest.fixture(autouse=True)
def _here(request: pytest.FixtureRequest) -> None:
    """Trace in this process, but for the test of a worker."""
    if "in_a_worker" not in request.node.name:
        request.getfixturevalue("traced_here")


def test_splits_and_cuts_are_read_from_the_graph_in_a_worker() -> None:
    """Others are traced in this process."""
    traced = model("mlp").traced
    assert traced is not None
    kinds = {split.name: split.kind for split in traced.splits}
    assert kinds == {"0": "column", "2": "row", "4": "column", "6": "row"}
    assert (traced.split_width, traced.units) == (64, ("0", "2", "4", "6"))


def test_a_gate_and_its_twin_are_both_columns() -> None:
    traced = model("gated").traced
    assert traced is not None
    kinds = {split.name: split.kind for split in traced.splits}
    for block in ("1.0", "1.1"):
        assert [kinds[f"{block}.{part}"] for part in ("gate", "up", "down")] == [
            *("column", "column", "row")
        ]
    # ten classes do not divide as the pairs do
    assert "2" not in kinds


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("conv", Layout(tp=2), "tp = 2: own_modules.py:conv cannot be split, as it has no Linear"),
        ("skip", Layout(pp=2, schedule="gpipe"), "as 2 tensors, not one, enter two; use pp = 1"),
        ("toy", Layout(tp=4), "tp = 4 does not divide the Linear layers' width 10; use one of 1,"),
        ("mlp", Layout(pp=8, schedule="gpipe"), "exceeds the 4 layers"),
        ("mlp", Layout(tp=2, sequence_parallel=True), "sequence"),
        ("mlp", Layout(cp=2), "fsdp2 has no cp axis"),
    ],
)
def test_what_cannot_be_split_is_said(name: str, layout: Layout, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        estimate(name, layout)


def test_other_frameworks_leave_it_to_data_parallelism() -> None:
    for framework in ("ddp", "accelerate"):
        with pytest.raises(LayoutError, match=f"{framework} has no tp axis"):
            estimate("mlp", Layout(tp=2), framework)


def test_the_plan_compares_tensor_and_pipeline_layouts() -> None:
    job = Workload(sequence_length=1, global_batch=64)
    answer = planner.plan(model("mlp"), "polaris", nodes=1, workload=job)
    degrees = {(one.layout.tp, one.layout.pp) for one in answer.ranked}
    assert {(1, 1), (2, 1), (4, 1), (1, 2), (2, 2)} <= degrees


@pytest.mark.parametrize(("name", "tp"), [("toy", 2), ("mlp", 4), ("odd", 2), ("gated", 2)])
def test_shards_are_those_of_torch(name: str, tp: int) -> None:
    """Elements on one rank, against DTensor's shards under a fake process group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    from planner.validate.sharding import adapter, own_module
    from tests.validate.train import own_modules

    module = getattr(own_modules, name)()[0]
    described = model(name)
    assert described.traced is not None
    with adapter.fake_world(0, tp):
        splits = {split.name: split.kind for split in described.traced.splits}
        own_module.tensor_parallel(module, init_device_mesh("cpu", (tp,)), splits)
        local = [p.to_local() if isinstance(p, DTensor) else p for p in module.parameters()]
        elements = sum(part.numel() for part in local)
    job = Workload(sequence_length=1, precision="fp32")
    scenario = Scenario(described, load_machine("polaris"), job, load_framework("fsdp2"))
    stages = Stages.of(scenario, Layouts.of(Layout(tp=tp)), 0)
    assert float(stages.params.all_gathered) == elements


def test_alternating_blocks_are_counted_at_their_places() -> None:
    """A stage of the MLP holds one column and one row matrix, wherever it is cut."""
    job = Workload(sequence_length=1, global_batch=4, precision="fp32")
    framework = load_framework("fsdp2").around(model("mlp"), job)
    scenario = Scenario(model("mlp"), load_machine("polaris"), job, framework)
    layout = Layout(pp=4, schedule="gpipe", grad_accumulation=4)
    counts = [list(count) for count in Stages.of_pipeline(scenario, layout).counts]
    assert counts[1:-1] == [[1, 0, 0, 0], [0, 1, 0, 1], [0, 0, 1, 0]]


@pytest.mark.alone
@pytest.mark.parametrize(("name", "world"), [("toy", 2), ("mlp", 2), ("mlp", 4), ("gated", 2)])
def test_strategies_equal_one_process(name: str, world: int) -> None:
    """Losses, parameters, states and every byte sent; peaks where activations are not tiny."""
    strategies = ("ddp", "zero3", "tp", "gpipe") if name != "gated" else ("tp", "1f1b")
    options = RunOptions(strategies, world, 0, limit_s=300.0, model=f"{FILE}:{name}", batch=64)
    results = run(options)
    assert results is not None
    assert len(results["cases"]) == len(strategies)
    for case in results["cases"]:
        assert case["equal"], case_line(case)
        assert case["bytes_equal"], case["traffic_per_rank"]
        assert case["state_bytes_equal"], case["state_bytes_per_rank"]


def reference(name: str, rows: int, steps: int) -> list[float]:
    """Losses of one process on the example program's samples."""
    from tests.validate.train import own_modules

    torch.manual_seed(0)
    module, sample = getattr(own_modules, name)()
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-3, foreach=False), []
    for step in range(steps):
        seeded = torch.Generator().manual_seed(step)
        loss = module(torch.randn((rows, *sample.shape), generator=seeded)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def emitted(name: str, layout: Layout) -> dict[str, str]:
    job = Workload(sequence_length=1, global_batch=layout.global_batch, precision="fp32")
    framework = load_framework("fsdp2").around(model(name), job)
    scenario = Scenario(model(name), load_machine("polaris"), job, framework)
    return files_of(BatchJob(scenario, estimate(name, layout), -(-layout.world // 4), 3))


@pytest.mark.alone
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("toy", Layout(tp=2, micro_batch=8)),
        ("toy", Layout(pp=2, schedule="gpipe", micro_batch=4, grad_accumulation=4)),
        ("mlp", Layout(tp=2, pp=2, schedule="1f1b", micro_batch=4, grad_accumulation=4)),
        ("mlp", Layout(dp=2, tp=2, zero_stage=3, micro_batch=8)),
        ("mlp", Layout(dp=2, pp=2, schedule="1f1b", recompute="full", grad_accumulation=4)),
        ("gated", Layout(tp=2, micro_batch=8, grad_accumulation=2)),
    ],
    ids=str,
)
def test_emitted_programs_equal_one_process(name: str, layout: Layout, tmp_path: Path) -> None:
    for file, text in emitted(name, layout).items():
        (tmp_path / file).write_text(text)
    (tmp_path / FILE.name).write_text(FILE.read_text())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, f"--nproc-per-node={layout.world}", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "STEPS": "3", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [int(words[1]) for words in lines] == [0, 1, 2], done.stderr[-2000:]
    losses = [float(words[3]) for words in lines]
    assert losses == pytest.approx(reference(name, layout.global_batch, 3), rel=1e-5)


def test_files_of_data_parallelism_alone_stay_one_module() -> None:
    assert "own_module.py" not in emitted("mlp", Layout(dp=2))
    with pytest.raises((EmitError, LayoutError)):
        emitted("conv", Layout(tp=2))
