"""Narayanan et al. 2021, table 1: micro-batches and chunks from the authors' script."""

from __future__ import annotations

SCHEDULES = {
    "GPT 1.7B": (16, 1),
    "GPT 3.6B": (16, 1),
    "GPT 7.5B": (16, 1),
    "GPT 18.4B": (8, 1),
    "GPT 39.1B": (4, 1),
    "GPT 76.1B": (2, 3),
    "GPT 145.6B": (2, 2),
    "GPT 310.1B": (1, 2),
    "GPT 529.6B": (1, 1),
    "GPT 1008B": (1, 1),
}
"""Micro-batch and virtual stages of NVIDIA/Megatron-LM
examples/academic_paper_scripts/sc21/run_table_1.sh (arXiv:2104.04473, table 1)."""


def with_schedule(row: dict[str, str]) -> dict[str, str]:
    """Fill in micro-batch and chunks of a row of table 1 from the script."""
    of_table = row["source"].startswith("Narayanan et al. 2021") and "Table 1" in row["source_ref"]
    if not of_table or row["micro_batch"]:
        return row
    micro, chunks = SCHEDULES[row["model"]]
    notes = [f"micro_batch missing: {micro} as in the published script"]
    if chunks > 1:
        notes.append(f"vpp missing: {chunks} as in the published script")
    return {**row, "micro_batch": str(micro), "vpp": str(chunks), "assumed": "; ".join(notes)}
