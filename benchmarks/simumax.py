"""SimuMax's measured runs: its table in the schema of runs, with the kernels that ran."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from canonical import runs_of

from planner.describe.catalogue import load_model
from planner.evidence.runs.run import RefusedRun, Run

MODELS = {"llama3-70b": "llama-3-70b", "llama3-8b": "llama-3-8b", "deepseekv2": "deepseek-v2"}
"""Catalogue models by SimuMax's names; its runs have fewer layers."""
COLUMNS = {
    "row_id": "case",
    "system": "system",
    "gpu": "gpu_type",
    "gpu_mem_gb": "gpu_mem_gb",
    "n_gpus": "gpus",
    "gpus_per_node": "gpus",
    "n_layers": "layers",
    "seq_len": "seq",
    "micro_batch": "micro_batch",
    "grad_accum": "num_micro_batches",
    "global_batch": "global_batch",
    "tp": "tp",
    "pp": "pp",
    "cp": "cp",
    "vpp": "vpp",
    "ep": "ep",
    "etp": "etp",
    "sequence_parallel": "sequence_parallel",
    "zero_stage": "zero",
    "precision": "dtype",
    "recompute": "recompute",
    "peak_memory_gib": "measured_peak_alloc_gib",
}


def simumax_runs(path: Path) -> list[Run | RefusedRun]:
    """Read the rows of `path`: one node each, times published or implied by published errors."""
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    runs = runs_of([_cells(row) for row in table], path.name)
    return [_as_run(run, row) for run, row in zip(runs, table, strict=True)]


def _cells(row: dict[str, str]) -> dict[str, object]:
    model = load_model(MODELS[row["model"]])
    return {
        **{name: row[column] for name, column in COLUMNS.items()},
        "source": f"SimuMax v1.2, {row['gpu_type']}",
        "source_ref": row["source"],
        "year": 2025,
        "framework": "Megatron-Core",
        "model": "Llama" if model.experts is None else "DeepSeek",
        "hidden": model.hidden_size,
        "n_heads": model.num_heads,
        "step_time_s": float(row["measured_step_ms"]) / 1e3,
        "memory_kind": "allocated",
        "reliability": "medium" if "IMPLIED" in row["measured_provenance"] else "high",
        "flash_attention": "yes",
    }


def _as_run(run: Run | RefusedRun, row: dict[str, str]) -> Run | RefusedRun:
    """Return the run with the catalogue's model, and the row's loss kernel and overlap."""
    if isinstance(run, RefusedRun):
        return run
    framework = run.framework
    kernels, communication = framework.kernels, framework.communication
    if row["ce_fusion"] == "1":
        kernels = kernels.replaced(loss="fused-copy")
    if "v0.12" in row["framework"]:
        # v0.12 applies scores to the experts' outputs, and keeps the outputs
        kernels = kernels.replaced(scores_inside_experts=False)
    if row["overlap"] == "none":
        communication = communication.replaced(
            overlap_gradients=False, overlap_parameters=False, overlap_tensor_backward=False
        )
    model = load_model(MODELS[row["model"]]).replaced(num_layers=int(row["layers"]))
    return replace(
        run,
        model=model,
        framework=framework.replaced(
            kernels=kernels.model_dump(), communication=communication.model_dump()
        ),
    )
