"""Real code: third-party training code, run on tensors without data, next to the estimate.

    python benchmarks/real_code.py --packages DIR      # writes docs/reference/real_code.md; an hour

Each case builds and shards a model with third-party code, and tracks every storage over one step.
Results are stored in a file (`--kept`): a stopped run resumes, and a changed formula is compared
again without running anything. DIR holds the packages, one folder each: `torchtitan-0.2.2`,
`torchtitan-0.3.0`, `nanogpt` (its model.py), and `deps` with their imports; make them with
`pip install --no-deps --target`. transformers, accelerate and deepspeed are imported from where
Python finds them.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import planner  # noqa: E402
from planner.cost.memory.peak import device_memory  # noqa: E402
from planner.cost.scenario import Scenario  # noqa: E402
from planner.cost.shards.stages import Stages  # noqa: E402
from planner.describe.catalogue import load_framework, load_machine, load_model  # noqa: E402
from planner.describe.layout import Layout  # noqa: E402
from planner.describe.model.huggingface.config import from_config  # noqa: E402
from planner.describe.model.model import Model  # noqa: E402
from planner.describe.workload import Workload  # noqa: E402
from planner.emitters.batch_job import BatchJob  # noqa: E402
from planner.emitters.recipes.deepspeed import config_file  # noqa: E402
from planner.validate.folder.configs import configuration  # noqa: E402

KEPT, PAGE = Path("real_code.jsonl"), ROOT / "docs" / "reference" / "real_code.md"
GIB = 2**30
_NOT_FOLLOWED = ("runtime_context", "allocator_reserve")


@dataclass(frozen=True)
class Case:
    """One step of one rank of third-party code."""

    code: str
    """Name of the code in the table."""
    worker: str
    """Module of `benchmarks.referee` that runs it."""
    model: str
    framework: str
    layout: Layout
    sequence: int
    attention: str = "flash"
    layers: int = 0
    """Number of layers; 0 for all layers of the model."""
    package: str = ""
    """Package folder that comes first on the import path."""
    options: dict[str, Any] = field(default_factory=dict)
    narrow: dict[str, int] = field(default_factory=dict)
    """Fields of config.json with smaller values than the model's own."""

    @property
    def key(self) -> str:
        """Name of the case in the results file."""
        options = "".join(f" {name}={value}" for name, value in self.options.items())
        eager = " eager" if self.attention == "eager" else ""
        few = f" {self.layers} layers" if self.layers else ""
        few += f" width {self.narrow['hidden_size']}" if self.narrow else ""
        return f"{self.code} | {self.model} | s{self.sequence} {self.layout}{eager}{few}{options}"

    @property
    def described(self) -> Model:
        """The planner's model; read from config.json if the code uses one."""
        model = load_model(self.model)
        fields = configuration(model, self.layers or model.num_layers) | self.narrow
        if self.worker in ("huggingface", "deepspeed"):
            return from_config(fields, self.model)
        return model.replaced(num_layers=self.layers) if self.layers else model

    @property
    def request(self) -> dict[str, Any]:
        """Description of the case for the worker, as JSON fields."""
        model = load_model(self.model)
        attention = {"flash": "sdpa"}.get(self.attention, self.attention)
        return {
            "config": configuration(model, self.layers or model.num_layers) | self.narrow,
            "layers": self.layers,
            "layout": self.layout.model_dump(),
            "sequence": self.sequence,
            "attention": attention,
            **({"engine": self.engine} if self.worker == "deepspeed" else {}),
            **self.options,
        }

    @property
    def engine(self) -> dict[str, Any]:
        """DeepSpeed's configuration, as `planner emit` writes it."""
        q = self.scenario
        found = planner.estimate(
            q.model, q.machine, self.layout, workload=q.workload, framework=q.framework
        )
        return dict(json.loads(config_file(BatchJob(q, found, 1, 1)).text))

    @property
    def scenario(self) -> Scenario:
        """The case as a scenario of the planner."""
        workload = Workload(
            sequence_length=self.sequence,
            global_batch=self.layout.global_batch,
            attention=self.attention,
            dropout=0.0,
            precision=self.options.get("precision", "bf16"),
        )
        framework = load_framework(self.framework)
        if "no_sync" in self.options:
            once = framework.communication.replaced(reduces_once=True)
            framework = framework.replaced(communication=once.model_dump())
        return Scenario(self.described, load_machine("dgx-h100"), workload, framework)


def cases() -> Iterator[Case]:
    """Yield all cases; a few have all layers, the others eight."""
    yield from _huggingface()
    yield from _torchtitan("0.3.0", "torchtitan")
    yield from _nanogpt()
    yield from _torchtitan("0.2.2", "fsdp2")
    yield from _deepspeed()


_NARROW = {
    "hidden_size": 1024,
    "intermediate_size": 2752,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
_FEW = 8
"""Number of layers of a shortened model."""


def _layout(dp: int, zero: int = 3, **more: Any) -> Layout:
    return Layout(dp=dp, zero_stage=zero, sequence_parallel=more.get("tp", 1) > 1, **more)


def _torchtitan(version: str, framework: str) -> Iterator[Case]:
    flavors = {"8B": "llama-3-8b", "70B": "llama-3-70b", "405B": "llama-3.1-405b"}
    full, selective = {"recompute": "full"}, {"recompute": "selective"}
    chosen: list[tuple[str, int, Layout, dict[str, Any]]] = [
        ("8B", 8192, _layout(8), {}),
        ("8B", 8192, _layout(8, **full), {}),
        ("8B", 8192, _layout(8, **selective), {}),
        ("8B", 8192, _layout(8, 2, grad_accumulation=2, **full), {}),
        ("8B", 4096, _layout(8, 2, micro_batch=2), {}),
        ("8B", 8192, _layout(8, tp=8, micro_batch=2), {}),
        ("8B", 8192, _layout(8, tp=8, micro_batch=2, **full), {}),
        ("8B", 8192, _layout(16, tp=4, **selective), {}),
        ("8B", 8192, _layout(32, dp_shard=8, **full), {}),
        ("70B", 8192, _layout(256, **full), {}),
        ("70B", 8192, _layout(32, tp=8, micro_batch=4, **full), {}),
        ("405B", 8192, _layout(64, tp=8, micro_batch=2, **full), {}),
    ]
    if version.startswith("0.2"):
        chosen.insert(1, ("8B", 8192, _layout(8), {"reshard": "always"}))
    else:
        chosen.insert(1, ("8B", 8192, _layout(8), {"plain_loss": True}))
    for number, (flavor, sequence, layout, options) in enumerate(chosen):
        yield Case(
            code=f"torchtitan {version}",
            worker="torchtitan",
            model=flavors[flavor],
            framework="fsdp2" if "plain_loss" in options else framework,
            layout=layout,
            sequence=sequence,
            layers=0 if version == "0.2.2" and number < 8 else _FEW,
            package=f"torchtitan-{version}",
            options={"flavor": flavor, **options},
        )


def _nanogpt() -> Iterator[Case]:
    for model, micro_batch in (("gpt2", 12), ("gpt2-medium", 8), ("gpt2-xl", 4)):
        layout = Layout(micro_batch=micro_batch, grad_accumulation=2)
        yield Case("nanoGPT", "nanogpt", model, "ddp", layout, 1024, package="nanogpt")


def _deepspeed() -> Iterator[Case]:
    for stage, precision in ((2, "bf16"), (1, "bf16"), (3, "bf16"), (2, "fp32")):
        layout = _layout(2, stage, grad_accumulation=2)
        options = {} if precision == "bf16" else {"precision": precision}
        yield Case(
            "transformers + DeepSpeed",
            "deepspeed",
            "llama-2-7b",
            "deepspeed",
            layout,
            256,
            layers=4,
            options=options,
            narrow=_NARROW,
        )


def _huggingface() -> Iterator[Case]:
    full = {"recompute": "full"}
    for options in ({}, {"no_sync": True}):
        for layout in (_layout(8, grad_accumulation=2, **full), _layout(8, 2, grad_accumulation=2)):
            yield _accelerated("qwen2.5-7b", 4096, layout, options=options)
    chosen: list[tuple[str, int, Layout, str]] = [
        ("llama-3-8b", 4096, _layout(8), "flash"),
        ("llama-3-8b", 8192, _layout(8, **full), "flash"),
        ("llama-3-8b", 2048, _layout(8, grad_accumulation=2), "eager"),
        ("llama-2-7b", 4096, _layout(8, micro_batch=2, **full), "flash"),
        ("llama-2-7b", 2048, _layout(8, 2, micro_batch=4), "flash"),
        ("llama-2-13b", 4096, _layout(16), "flash"),
        ("mistral-7b", 4096, _layout(16, micro_batch=2, **full), "flash"),
        ("mistral-7b", 4096, _layout(16), "flash"),
        ("qwen2.5-7b", 4096, _layout(8), "flash"),
        ("qwen3-8b", 4096, _layout(8), "flash"),
        ("qwen3-8b", 4096, _layout(8, 2, **full), "flash"),
        ("llama-3.2-1b", 4096, _layout(4, micro_batch=4), "flash"),
        ("llama-3.2-3b", 4096, _layout(8, micro_batch=2, **full), "flash"),
        ("olmo-2-7b", 4096, _layout(16), "flash"),
        ("phi-3-mini", 4096, _layout(8), "flash"),
        ("gpt-neox-20b", 2048, _layout(16, micro_batch=2), "flash"),
        ("gpt-neox-20b", 2048, _layout(16, **full), "flash"),
        ("gpt2", 1024, _layout(2, micro_batch=12), "flash"),
        ("gpt2-xl", 1024, _layout(8, micro_batch=8), "flash"),
        ("gpt2-xl", 1024, _layout(8, micro_batch=8, **full), "flash"),
        ("gemma-2-27b", 4096, _layout(16, **full), "eager"),
        ("gemma-2-27b", 4096, _layout(16), "eager"),
        ("llama-3-70b", 4096, _layout(64, **full), "flash"),
        ("qwen2.5-72b", 4096, _layout(64), "flash"),
    ]
    for number, (model, sequence, layout, attention) in enumerate(chosen):
        layers = 0 if model == "llama-3-8b" and number < 2 else _FEW
        yield _accelerated(model, sequence, layout, attention, layers)


def _accelerated(
    model: str,
    sequence: int,
    layout: Layout,
    attention: str = "flash",
    layers: int = _FEW,
    options: dict[str, Any] | None = None,
) -> Case:
    code = "transformers + Accelerate"
    return Case(
        code,
        "huggingface",
        model,
        "accelerate",
        layout,
        sequence,
        attention,
        layers,
        options=options or {},
    )


# --- running -------------------------------------------------------------------------------------


def run_cases(path: Path, chosen: list[Case], packages: Path) -> dict[str, dict[str, Any]]:
    """Return results by key; runs only cases that are missing in the file, one at a time."""
    found: dict[str, dict[str, Any]] = {}
    if path.exists():
        found = {
            row["key"]: row["result"] for row in map(json.loads, path.read_text().splitlines())
        }
    todo = [case for case in chosen if case.key not in found]
    # DeepSpeed's groups outlive an engine: each DeepSpeed case has its own process
    groups = itertools.groupby(
        todo,
        lambda case: (case.worker, case.package, case.key if case.worker == "deepspeed" else ""),
    )
    for (worker, package, _), group in groups:
        with _process(worker, packages / package, packages / "deps") as process:
            for case in group:
                print(case.key, file=sys.stderr, flush=True)
                result = _run_case(process, case)
                if "error" in result:
                    print(f"  {result['error']}", file=sys.stderr, flush=True)
                    continue
                found[case.key] = result
                with path.open("a") as file:
                    file.write(json.dumps({"key": case.key, "result": result}) + "\n")
    return found


def _process(worker: str, *packages: Path) -> subprocess.Popen[str]:
    """Start a process for the cases of one code, so that package releases do not mix."""
    paths = os.pathsep.join(map(str, (ROOT, *packages)))
    return subprocess.Popen(
        ["nice", "-n", "5", sys.executable, "-m", "benchmarks.referee", worker],
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _run_case(process: subprocess.Popen[str], case: Case) -> dict[str, Any]:
    """Send a case to a worker process and return its answer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(case.request) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    return dict(json.loads(answer)) if answer else {"error": "the process ended"}


# --- the page ------------------------------------------------------------------------------------


def estimated(case: Case) -> float:
    """Estimate a case's peak memory, without driver context and allocator reserve [B]."""
    parts, _ = device_memory(Stages.of_pipeline(case.scenario, case.layout))
    sizes = (value for name, value in parts.items() if name not in _NOT_FOLLOWED)
    return float(np.max(sum(sizes)))


@dataclass(frozen=True)
class Row:
    """A case with the peak of its code and the estimated peak [B]."""

    case: Case
    real: float
    estimate: float

    @property
    def error(self) -> float:
        """Relative error: estimate over real, minus one."""
        return self.estimate / self.real - 1

    def __str__(self) -> str:
        case = self.case
        notes = ["eager attention"] * (case.attention == "eager")
        notes += [
            f"{name} {value}" if value is not True else name.replace("_", " ")
            for name, value in case.options.items()
            if name != "flavor"
        ]
        layers = case.layers or load_model(case.model).num_layers
        model = case.model + (f", width {case.narrow['hidden_size']}" if case.narrow else "")
        cells = (case.code, case.framework, model, layers, case.sequence, case.layout)
        return (
            f"| {' | '.join(map(str, cells))}{''.join(f', {note}' for note in notes)} "
            f"| {self.real / GIB:.2f} | {self.estimate / GIB:.2f} | {100 * self.error:+.2f} % |"
        )


def page(rows: list[Row]) -> str:
    """Return the text of docs/reference/real_code.md."""
    sizes = [abs(row.error) for row in rows]
    head = ("code", "framework", "model", "layers", "tokens", "layout", "real", "estimate", "")
    lines = [
        INTRODUCTION,
        f"{len(rows)} cases: median {100 * median(sizes):.2f} %, worst {100 * max(sizes):.2f} %, "
        f"{sum(size <= 0.01 for size in sizes)} within 1 %. GiB.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * 3 + "---:|" * 2 + "---|" + "---:|" * 3,
        *map(str, rows),
    ]
    return "\n".join(lines) + "\n"


INTRODUCTION = """\
# Third-party code beside the estimate

Written by `benchmarks/real_code.py`; do not edit by hand.

Each row is one step of one rank of somebody else's code: their model, their way to shard it, their
loss and their loop, on tensors without data under a process group of which one rank exists, with
torch 2.13. Every storage is followed; *real* is their highest sum. The estimate is the total
without the device's context and the allocator's reserve.

- torchtitan 0.2.2 and 0.3.0 (PyPI): their Llama 3 and `parallelize_llama`, with
  `fsdp_reshard_after_forward = "default"` where the layout is ZeRO-3, as `planner emit` writes.
  0.3.0 runs its chunked loss and flex attention, and the backend `partial_dtensor`: its default,
  `spmd_types`, needs a later torch.
- transformers 5.23 under Accelerate 1.15: `fsdp2_apply_ac` and `fsdp2_prepare_model` with bf16,
  and a plain loop that keeps `outputs` through backward. AdamW with foreach kernels.
  *no sync* is Accelerate's own way to sum several passes (`no_sync`); the other rows reduce after
  every pass (`sync_each_batch`).
- nanoGPT at 3adf61e: its model under autocast on one device, as its train.py runs it.
- DeepSpeed 0.19.8: `deepspeed.initialize` with the configuration that `planner emit` writes and
  torch's fused AdamW, on real tensors, with matrix products left out; the peak is that of the
  second step.

What a CPU does otherwise than CUDA is replaced: torch's RMS norm by a kernel that keeps its input
and one number a row; flex attention by the flash kernel, which keeps the same tensors; the name of
the flash kernel joins torchtitan's list of what selective recompute keeps; nanoGPT's loss runs in
fp32, as CUDA's autocast has it. Whether a row holds several sequences, which transformers looks up
in the positions' values, is answered with no. Clipping of gradients and data are left out.

Frameworks' traits were set by reading this code, with most of these rows in sight: the rows show
that nothing of them is left unexplained, and are no proof for other models.
"""


def main(
    packages: Annotated[Path, typer.Option(help="Folders of third-party packages.")] = Path(),
    kept: Annotated[Path, typer.Option(help="Where results are kept.")] = KEPT,
    output: Annotated[Path, typer.Option(help="The page to write.")] = PAGE,
    only: Annotated[str, typer.Option(help="Only cases whose name holds this.")] = "",
    run: Annotated[bool, typer.Option(help="Run what is not kept yet.")] = True,
) -> None:
    """Run the missing cases, and write the page."""
    chosen = [case for case in cases() if only in case.key]
    found = run_cases(kept, chosen if run else [], packages)
    known = [case for case in chosen if case.key in found]
    rows = [Row(case, found[case.key]["peak"], estimated(case)) for case in known]
    output.write_text(page(rows))
    print(f"{len(rows)} of {len(chosen)} cases; wrote {output}", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
