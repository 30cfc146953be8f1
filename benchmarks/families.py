"""Families: transformers' code of every family, wrapped as emitted files do, beside the estimate.

    python benchmarks/families.py      # writes docs/reference/families.md; ten minutes

Each case is one step of one rank on tensors without data (planner/validate/folder). Needs
transformers and accelerate; peft for the rows with adapters.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from planner.choose.jobs.job_spec import JobSpec  # noqa: E402
from planner.choose.planning import estimate_job, scenario_for  # noqa: E402
from planner.cost.memory.peak import device_memory  # noqa: E402
from planner.cost.shards.layouts import Layouts  # noqa: E402
from planner.cost.shards.stages import Stages  # noqa: E402
from planner.cost.uncertainty import memory_outlook  # noqa: E402
from planner.describe.files import read_toml  # noqa: E402
from planner.describe.layout import Layout  # noqa: E402
from planner.describe.model.huggingface.config import from_config  # noqa: E402
from planner.describe.workload import Workload  # noqa: E402
from planner.emitters.batch_job import BatchJob  # noqa: E402
from planner.emitters.recipes import fully_shard  # noqa: E402
from planner.validate.trace.compare import NOT_TRACED  # noqa: E402
from planner.validate.trace.tracer import TraceError, Tracer  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "families.md"
GIB, SEQUENCE, RANKS = 2**30, 1024, 8
_LORA = {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"], "lora_alpha": 16}
Case = tuple[str, str, str, str, int]
"""Family, framework, recompute, precision, rank of LoRA adapters."""


def cases() -> Iterator[Case]:
    """Yield all cases: every family under both frameworks, and a few in other precisions."""
    families = read_toml(Path(__file__).with_suffix(".toml"))
    for family, framework in itertools.product(families, ("accelerate", "fsdp2")):
        yield from ((family, framework, recompute, "bf16", 0) for recompute in ("none", "full"))
    for family in ("mistral", "gpt2", "bloom", "gpt_neox"):
        yield family, "accelerate", "none", "fp32", 0
    for family in ("mistral", "qwen2", "granite"):
        yield family, "accelerate", "none", "bf16", 16


def measure(case: Case, tracer: Tracer) -> tuple[float, float, tuple[float, float]] | None:
    """Traced and estimated peak of a case [B], and the interval as multiples of the estimate.

    None for a model that torchtitan builds, whose folder has no `sharding.py`.
    """
    family, framework, recompute, precision, rank = case
    fields = read_toml(Path(__file__).with_suffix(".toml"))[family]
    layout = Layout(dp=RANKS, zero_stage=3, micro_batch=2, recompute=recompute)
    workload = Workload(
        sequence_length=SEQUENCE,
        global_batch=layout.global_batch,
        dropout=0.0,
        precision=precision,
        lora_rank=rank,
    )
    model = from_config(fields, family)
    job = JobSpec(model, "dgx-h100", workload=workload, frameworks=framework)
    scenario = scenario_for(job, layout)
    if framework == "fsdp2" and scenario.framework.code.builds(model, workload) is not None:
        return None
    request: dict[str, Any] = {
        "config": fields,
        "layout": layout.model_dump(),
        "sequence": SEQUENCE,
        "attention": "default",
        "precision": precision,
        "code": "planner.validate.folder.huggingface",
        "wrap": "accelerate",
        "lora": {**_LORA, "r": rank} if rank else None,
    }
    if framework == "fsdp2":
        found = BatchJob(scenario, estimate_job(job, layout), 1, 1)
        text = next(file.text for file in fully_shard.recipe(found).files)
        request |= {"wrap": "sharding.py", "fused": True, "sharding": text}
    real = tracer.ask(request)["peak"]
    parts, _ = device_memory(Stages.of_pipeline(scenario, layout))
    estimate = sum(float(np.max(size)) for name, size in parts.items() if name not in NOT_TRACED)
    spread = memory_outlook(scenario, Layouts.of(layout))
    return real, estimate, (float(np.min(spread.low)), float(np.max(spread.high)))


INTRODUCTION = """\
# Families of transformers beside the estimate

Written by `benchmarks/families.py`; do not edit by hand.

One step of one rank of transformers' own code for each family: 8 ranks, ZeRO-3, micro-batch 2,
1,024 tokens, 8 layers of width 1,024. Attention is what transformers takes by default. Rows of
accelerate run its `fsdp2_prepare_model`, those of fsdp2 the emitted `sharding.py`, for families
that torchtitan does not build. Every storage is followed on tensors without data; *real* is the
highest sum. The estimate leaves out the device's context and the allocator's reserve.

Traits of families were set by reading this code, with most of these rows in sight.
"""


def main() -> None:
    """Run every case, and write the page."""
    lines, errors, inside = [], [], 0
    with Tracer() as tracer:
        for case in cases():
            family, framework, recompute, precision, rank = case
            try:
                figures = measure(case, tracer)
            except TraceError as error:
                print(case, error, file=sys.stderr, flush=True)
                continue
            if figures is None:
                continue
            real, estimate, (low, high) = figures
            errors.append(estimate / real - 1)
            inside += low <= real / estimate <= high
            extra = ", ".join([precision, *([f"LoRA {rank}"] if rank else [])])
            lines.append(
                f"| {family} | {framework} | {recompute} | {extra} | {real / GIB:.2f} "
                f"| {estimate / GIB:.2f} | {100 * errors[-1]:+.2f} % |"
            )
            print(lines[-1], file=sys.stderr, flush=True)
    sizes = [abs(error) for error in errors]
    summary = (
        f"{len(sizes)} cases: median {100 * median(sizes):.2f} %, worst {100 * max(sizes):.2f} %, "
        f"{sum(size <= 0.01 for size in sizes)} within 1 %, {inside} inside the 90 % interval. GiB."
    )
    head = "| family | framework | recompute | precision | real | estimate |  |"
    table = [head, "|---|---|---|---|---:|---:|---:|", *lines]
    PAGE.write_text("\n".join([INTRODUCTION, summary, "", *table]) + "\n")


if __name__ == "__main__":
    main()
