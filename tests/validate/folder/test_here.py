"""One rank of an emitted job, tracked in this process, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import torch
import transformers
from torch import nn

from planner import Layout, Workload
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.errors import CatalogueError, LayoutError
from planner.validate.folder import folder as module
from planner.validate.folder.folder import FolderCheck, check_folder
from planner.validate.folder.tracked import Job, measure
from planner.validate.trace.tracer import Tracer, _answer
from tests.validate.folder.test_folder import emitted

pytestmark = pytest.mark.filterwarnings("ignore")


class _Chain(nn.Module):
    """Four linear layers of 8 x 8, without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def test_a_step_holds_what_can_be_counted_by_hand() -> None:
    """Weights, two moments and gradients of 4 matrices, a batch of 16 rows, saved inputs."""
    passes: list[bool] = []

    def build() -> Any:
        with torch.device("meta"):
            model = _Chain()

        def materialise() -> Job:
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            x = torch.zeros(16, 8)
            return Job(
                model, optimizer, lambda: (model(x).sum(),), 3, batch=[x], before=passes.append
            )

        return materialise

    found = measure(build, 1)
    assert passes == [False, False, True]
    assert found["collectives"] == []
    weights, row = 4 * 8 * 8 * 4, 16 * 8 * 4
    steps = 4 * 4
    states = 3 * weights + steps + row
    phases = found["phases"]
    assert found["peak"] == max(phases.values()) == phases[found["phase"]]
    # the optimizer has gradients beside the states, and the loop the last loss
    assert phases["end"] == states + weights + 4
    # the last forward pass: gradients of passes before, saved inputs, output, and two losses
    assert phases["forward"] == states + weights + 4 * row + 2 * 4
    assert found["phase"] == "backward"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Requests to the tracer, answered in this process, whose torch stays as it is."""
    asked: list[dict[str, Any]] = []

    def ask(_: Tracer, request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request)
        return _answer(json.loads(json.dumps(request)))

    monkeypatch.setattr(Tracer, "ask", ask)
    functional, masks = nn.functional, transformers.masking_utils
    sdpa, packed = functional.scaled_dot_product_attention, masks.find_packed_sequence_indices
    yield asked
    functional.scaled_dot_product_attention = sdpa
    masks.find_packed_sequence_indices = packed


@pytest.mark.parametrize("framework", ["fsdp2", "accelerate"])
def test_transformers_code_holds_and_sends_what_the_plan_says(
    framework: str, tmp_path: Path, here: list[dict[str, Any]]
) -> None:
    config = emitted(tmp_path, framework)
    check = check_folder(tmp_path / "job", config)
    assert abs(check.error) < module.TOLERANCE
    assert all(real == planned > 0 for real, planned in check.collectives.values())
    assert check.job.startswith("neox, ") or "gpt_neox" in check.job
    (request,) = here
    assert request["wrap"] == {"fsdp2": "sharding.py", "accelerate": "accelerate"}[framework]
    assert ("sharding" in request) is (framework == "fsdp2")
    assert (request["sequence"], request["config"]["use_cache"]) == (512, False)


CHECK = FolderCheck("a job", 2**30, round(1.02 * 2**30), {"all_gather": (2**20, 2**20)})


def test_a_check_is_three_lines() -> None:
    assert CHECK.agrees
    assert CHECK.error == pytest.approx(0.02)
    assert str(CHECK).splitlines() == [
        "a job",
        "The plan agrees with the traced step: peak 1.00 GiB traced, 1.02 GiB estimated (+2.0%).",
        "all_gather: 1.00 MiB traced, 1.00 MiB expected",
    ]
    low = FolderCheck("a job", 2**30, round(0.94 * 2**30))
    assert not low.agrees
    assert "The plan differs from the traced step" in str(low)
    assert "(-6.0%)" in str(low)
    assert CHECK.as_dict() == {
        "job": "a job",
        "traced_bytes": 2**30,
        "estimated_bytes": CHECK.estimated_bytes,
        "collectives": {"all_gather": (2**20, 2**20)},
        "error": CHECK.error,
        "agrees": True,
    }


@pytest.mark.parametrize(
    ("name", "layout", "workload", "words"),
    [
        ("ddp", {}, {}, "framework ddp is not run; use accelerate, fsdp2"),
        ("fsdp2", {"tp": 2}, {}, "tp, pp, cp and ep are not run; use 1"),
        ("fsdp2", {"cp": 2}, {}, "tp, pp, cp and ep are not run; use 1"),
        ("accelerate", {"dp": 4, "dp_shard": 2}, {}, "groups of ranks that replicate are not run"),
        ("fsdp2", {"offload": "optimizer-cpu"}, {}, "offload optimizer-cpu is not run; use none"),
        ("fsdp2", {"recompute": "selective"}, {}, "selective recompute is not run"),
        ("fsdp2", {}, {"precision": "fp16"}, "precision fp16 is not run; use bf16 or fp32"),
        ("fsdp2", {}, {"optimizer": "sgd"}, "optimizer sgd is not run; use adamw"),
        ("fsdp2", {}, {"lora_rank": 8}, "adapters and frozen parts are not run"),
    ],
)
def test_what_is_not_run_is_refused(
    name: str, layout: dict[str, Any], workload: dict[str, Any], words: str
) -> None:
    with pytest.raises(LayoutError, match=words):
        module._check_runs(name, Layout(**layout), Workload(**workload))


def test_what_runs_is_not_refused() -> None:
    for name in ("fsdp2", "accelerate"):
        module._check_runs(name, Layout(dp=4, zero_stage=3, recompute="full"), Workload())
    module._check_runs("fsdp2", Layout(dp=4, dp_shard=2, zero_stage=3), Workload())


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "accelerate" else name)
    with pytest.raises(CatalogueError, match="checked with accelerate; run pip install accelerate"):
        module._check_runs("fsdp2", Layout(), Workload())


def test_a_folder_lacks_its_sharding(tmp_path: Path) -> None:
    config = emitted(tmp_path, "fsdp2")
    (tmp_path / "job" / "sharding.py").unlink()
    with pytest.raises(LayoutError, match="torchtitan's own program is not run; emit with -f"):
        check_folder(tmp_path / "job", config)


def test_fields_of_a_model_are_those_of_its_file_or_determined_by_its_sizes(tmp_path: Path) -> None:
    fields = module._fields("llama-3-8b", None)
    assert (fields["hidden_size"], fields["num_hidden_layers"]) == (4096, 32)
    file = tmp_path / "own.json"
    file.write_text('{"model_type": "llama"}')
    assert module._fields(str(file), None) == {"model_type": "llama"}
    assert module._fields("llama-3-8b", file) == {"model_type": "llama"}
    with pytest.raises(
        CatalogueError, match="mixtral-8x7b: the catalogue does not hold all fields"
    ):
        module._fields("mixtral-8x7b", None)


def test_bytes_of_each_kind_are_summed_beside_those_expected() -> None:
    work = Workload(global_batch=8, sequence_length=512)
    scenario = module.Scenario(
        load_model("gpt2"), load_machine("dgx-h100"), work, load_framework("fsdp2")
    )
    traced = [{"name": "all_gather", "bytes": 3}, {"name": "broadcast", "bytes": 5}]
    found = module._collectives(scenario, Layout(dp=8, zero_stage=3), [*traced, traced[0]])
    assert list(found) == ["all_gather", "broadcast", "reduce_scatter"]
    assert (found["all_gather"][0], found["broadcast"]) == (6, (5, 0))
    assert found["reduce_scatter"][0] == 0 < found["reduce_scatter"][1]
