"""AMP's measured layouts: runs on one kind of device, in the schema of runs."""

from __future__ import annotations

import csv
from pathlib import Path

from canonical import runs_of

from planner.evidence.runs.run import RefusedRun, Run


def amp_runs(path: Path) -> list[Run | RefusedRun]:
    """Read GPT-2 with 24 layers on 16 T4, in 52 layouts; "inf" marks a failed run.

    Left out: clusters of two kinds of devices, and models that are not plain transformers.
    """
    with path.open(encoding="utf-8", newline="") as file:
        table = [row for row in csv.DictReader(file) if row["experiment"] == "homogeneous"]
    cells = [_cells(number, row) for number, row in enumerate(table)]
    return runs_of(cells, path.name)


def _cells(number: int, row: dict[str, str]) -> dict[str, object]:
    failed = row["measured_s"] == "inf"
    return {
        "row_id": f"amp-{number}",
        "source": "AMP (Li et al. 2022), 16 T4",
        "year": 2022,
        "gpu": "T4",
        "gpu_mem_gb": 16,
        "n_gpus": row["gpus"],
        "gpus_per_node": 4,
        "model": "GPT-2 24L 1024",
        "n_layers": 24,
        "hidden": 1024,
        "n_heads": 16,
        "vocab": 50257,
        "seq_len": row["seq"],
        "precision": "fp16",
        "framework": "Megatron-DeepSpeed",
        "dp": row["dp"],
        "tp": row["tp"],
        "pp": row["pp"],
        "zero_stage": 0,
        "recompute": "none",
        "flash_attention": "no",
        "micro_batch": row["micro_batch"],
        "global_batch": row["global_batch"],
        "step_time_s": "" if failed else row["measured_s"],
        "oom": "yes" if failed else "",
        "reliability": "medium",
    }
