"""horovod: one process a device under the site's MPI, and the module that wraps the optimizer."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.machine.machine import Scheduler
from planner.errors import EmitError
from tests.emitters.emitted import files_of, place_files

LAYOUT = Layout(dp=8, micro_batch=2, grad_accumulation=3)


@pytest.mark.parametrize(
    ("machine", "start"),
    [
        # as ALCF's page on PyTorch has it: mpiexec -np N -ppn 4 --cpu-bind depth -d 16 python3
        (
            "polaris",
            "mpiexec --verbose --envall -n 8 --ppn 4 "
            '--hostfile="${PBS_NODEFILE}" --depth=16 --cpu-bind depth',
        ),
        ("vsc-5", "srun --ntasks=4 --ntasks-per-node=2 --cpus-per-task=128 --kill-on-bad-exit=1"),
        ("workstation-4x4090", "horovodrun -np 4"),
    ],
)
def test_every_device_gets_a_process(machine: str, start: str) -> None:
    files = place_files(machine, framework="horovod")
    script = " ".join(files["job.sh"].replace("\\\n", " ").split())
    assert start in script
    assert script.partition(start)[2].partition("2>&1")[0].endswith('python3 -u "${PROGRAM}" ')
    assert "torchrun" not in script
    assert "rank.sh" not in files


def test_the_fusion_buffer_is_the_one_that_is_counted() -> None:
    """128 MiB since Horovod 0.21."""
    script = files_of("gpt2", "polaris", 2, LAYOUT, "horovod")["job.sh"]
    assert "export HOROVOD_FUSION_THRESHOLD=134217728\n" in script
    assert "export HOROVOD_CYCLE_TIME=1\n" in script


def test_switches_are_written() -> None:
    """Fusion threshold in bytes, cycle in ms: horovod @2626dc87, common/operations.cc."""
    chosen = "horovod+bucket=16777216+cycle=5ms+fp16-compression+hierarchical"
    files = files_of("gpt2", "polaris", 2, LAYOUT, chosen)
    for line in ("FUSION_THRESHOLD=33554432", "CYCLE_TIME=5", "HIERARCHICAL_ALLREDUCE=1"):
        assert f"export HOROVOD_{line}\n" in files["job.sh"]
    assert "COMPRESSION = hvd.Compression.fp16\n" in files["horovod_plan.py"]


def test_the_module_wraps_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    calls: dict[str, Any] = {}
    hvd = ModuleType("horovod.torch")
    vars(hvd).update(
        Compression=SimpleNamespace(none="whole", fp16="halved"),
        broadcast_parameters=lambda given, root_rank: calls.update(parameters=given),
        broadcast_optimizer_state=lambda given, root_rank: calls.update(states=given),
        DistributedOptimizer=lambda given, **options: (given, options),
    )
    monkeypatch.setitem(sys.modules, "horovod", ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.torch", hvd)
    names: dict[str, Any] = {}
    exec(files_of("gpt2", "polaris", 2, LAYOUT, "horovod")["horovod_plan.py"], names)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    given, options = names["distributed"](model, optimizer)
    assert given is optimizer is calls["states"]
    assert set(calls["parameters"]) == {"weight", "bias"}
    assert [name for name, _ in options.pop("named_parameters")] == ["weight", "bias"]
    # gradients are added up over three passes and sent in fp32
    assert options == {"compression": "whole", "backward_passes_per_step": 3}
    assert (names["MICRO_BATCH"], names["DTYPE"]) == (2, torch.bfloat16)


def test_a_pod_has_no_mpi() -> None:
    machine = load_machine("workstation-2x4090").replaced(scheduler=Scheduler(kind="kubernetes"))
    with pytest.raises(EmitError, match=r"which has no MPI.*use framework ddp"):
        place_files(machine, framework="horovod")
