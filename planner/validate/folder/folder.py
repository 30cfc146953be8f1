"""Folder: one rank of an emitted job, run by its real framework on tensors without data."""

from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from planner.cost.memory.peak import device_memory
from planner.cost.scenario import Scenario
from planner.cost.shards.stages import Stages
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.configurations.reading import read_configuration
from planner.describe.files import parse_json, read_text
from planner.describe.layout import Layout
from planner.describe.model.huggingface.config import from_config
from planner.describe.workload import Workload
from planner.errors import CatalogueError, LayoutError, PlannerError
from planner.units import format_bytes
from planner.validate.folder.configs import configuration
from planner.validate.trace.compare import NOT_TRACED
from planner.validate.trace.expected_collectives import expected_collectives
from planner.validate.trace.tracer import Tracer

TOLERANCE = 0.05
"""Difference of the peaks above which plan and trace disagree [1]."""
_WRAPS = {"accelerate": "accelerate", "fsdp2": "sharding.py"}
"""Frameworks whose code runs without a device, and how their files wrap a model."""


@dataclass(frozen=True, slots=True)
class FolderCheck:
    """One rank of an emitted job: traced and estimated."""

    job: str
    traced_bytes: int
    estimated_bytes: int
    """Estimate without the device's context and the allocator's reserve."""
    collectives: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Traced and expected bytes of each kind of collective in a step."""

    @property
    def error(self) -> float:
        """Estimate / trace - 1."""
        return self.estimated_bytes / self.traced_bytes - 1

    @property
    def agrees(self) -> bool:
        """True if the estimated peak is within TOLERANCE of the traced one."""
        return abs(self.error) <= TOLERANCE

    def as_dict(self) -> dict[str, Any]:
        """Return data that JSON can hold."""
        return {**asdict(self), "error": self.error, "agrees": self.agrees}

    def __str__(self) -> str:
        word = "agrees with" if self.agrees else "differs from"
        lines = [
            f"{self.job}",
            f"The plan {word} the traced step: peak {format_bytes(self.traced_bytes)} traced, "
            f"{format_bytes(self.estimated_bytes)} estimated ({self.error:+.1%}).",
        ]
        lines += [
            f"{name}: {format_bytes(traced)} traced, {format_bytes(expected)} expected"
            for name, (traced, expected) in self.collectives.items()
        ]
        return "\n".join(lines)


def check_folder(
    folder: Path, config: Path | None = None, machine: str = "dgx-h100"
) -> FolderCheck:
    """Trace one rank of an emitted folder's job and compare it with its estimate."""
    stated = read_configuration(folder / "layout.json")
    name = stated.framework.partition("+")[0]
    layout, workload = Layout(**stated.layout), Workload(**dict(stated.workload))
    _check_runs(name, layout, workload)
    if name == "fsdp2" and not (folder / "sharding.py").exists():
        raise LayoutError(
            "torchtitan's own program is not run; emit with -f accelerate to trace it"
        )
    fields = _fields(stated.model, config)
    model = from_config(fields, stated.model or str(fields["model_type"]))
    framework = load_framework(stated.framework)
    scenario = Scenario(model, load_machine(machine), workload, framework)
    request = {
        "config": fields | {"use_cache": False},
        "kind": model.kind,
        "layout": layout.model_dump(),
        "sequence": workload.sequence_length,
        "attention": scenario.workload.attention.replace("flash", "sdpa"),
        "precision": workload.precision,
        "code": "planner.validate.folder.huggingface",
        "wrap": _WRAPS[name],
        "fused": framework.kernels.fused_optimizer,
    }
    if name == "fsdp2":
        request["sharding"] = read_text(folder / "sharding.py")
    with Tracer() as tracer:
        traced = tracer.ask(request)
    parts, _ = device_memory(Stages.of_pipeline(scenario, layout))
    peak = sum(float(np.max(size)) for part, size in parts.items() if part not in NOT_TRACED)
    collectives = _collectives(scenario, layout, traced["collectives"])
    job = f"{model.name}, {layout} [{stated.framework}], one rank of transformers' code"
    return FolderCheck(job, traced["peak"], round(peak), collectives)


def _check_runs(name: str, layout: Layout, workload: Workload) -> None:
    """Raise LayoutError with the first reason why a job cannot run without a device."""
    if missing := [name for name in ("transformers", "accelerate") if find_spec(name) is None]:
        raise CatalogueError(f"a folder is checked with {missing[0]}; run pip install {missing[0]}")
    degrees = layout.tp * layout.pp * layout.cp * layout.ep
    hybrid = name == "accelerate" and layout.dp_shard not in (0, layout.dp)
    reasons = {
        f"framework {name} is not run; use {', '.join(_WRAPS)}": name not in _WRAPS,
        "tp, pp, cp and ep are not run; use 1": degrees > 1,
        "groups of ranks that replicate are not run; use dp_shard = 0": hybrid,
        f"offload {layout.offload} is not run; use none": layout.offload != "none",
        "selective recompute is not run; use none or full": layout.recompute == "selective",
        f"precision {workload.precision} is not run; use bf16 or fp32": workload.precision
        not in ("bf16", "fp32"),
        f"optimizer {workload.optimizer} is not run; use adamw": workload.optimizer != "adamw",
        "adapters and frozen parts are not run; train all weights": workload.adapted,
    }
    if reason := next((reason for reason, holds in reasons.items() if holds), ""):
        raise LayoutError(reason)


def _fields(name: str, config: Path | None) -> dict[str, Any]:
    """Fields of a model's config.json: the file, or the catalogue's sizes if they determine it."""
    if config is not None or name.endswith(".json"):
        path = config or Path(name)
        return dict(parse_json(read_text(path), path.name))
    model = load_model(name, run=False)
    fields = configuration(model, model.num_layers)
    try:
        same = from_config(fields, name).num_params == model.num_params
    except PlannerError:
        same = False
    if not same:
        raise CatalogueError(
            f"{name}: the catalogue does not hold all fields of its config.json; give the file "
            "with --model"
        )
    return fields


def _collectives(
    scenario: Scenario, layout: Layout, traced: list[dict[str, Any]]
) -> dict[str, tuple[int, int]]:
    sums: dict[str, list[int]] = {}
    for item in traced:
        sums.setdefault(item["name"], [0, 0])[0] += item["bytes"]
    for expected in expected_collectives(scenario, layout):
        sums.setdefault(expected.name, [0, 0])[1] += expected.bytes
    return {name: (real, planned) for name, (real, planned) in sorted(sums.items())}
