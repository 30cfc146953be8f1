"""Tables of runs that many tests read."""

from __future__ import annotations

import csv
from pathlib import Path

# Narayanan et al. 2021, arXiv:2104.04473, table 1: devices, tp, pp, dp from batch, TFLOP/s per
# device; seconds follow from equation 3, F = 96 B s l h^2 (1 + s / 6h + V / 16 l h).
NARAYANAN = (
    # billion, heads, hidden, layers, tp, pp, devices, batch, TFLOP/s
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163),
)


def seconds(hidden: int, layers: int, devices: int, batch: int, tflops: float) -> float:
    """Step time from the printed rate by equation 3 of the paper."""
    s, v = 2048, 51200
    flop = 96 * batch * s * layers * hidden**2 * (1 + s / (6 * hidden) + v / (16 * layers * hidden))
    return flop / (devices * tflops * 1e12)


def narayanan_rows() -> list[dict[str, object]]:
    return [
        {
            "row_id": f"N{billion}",
            "source": "Narayanan 2021",
            "year": 2021,
            "system": "Selene",
            "gpu": "A100-SXM",
            "gpu_mem_gb": 80,
            "gpus_per_node": 8,
            "n_gpus": devices,
            "model": f"GPT {billion}B",
            "params_b": billion,
            "n_layers": layers,
            "hidden": hidden,
            "n_heads": heads,
            "activation": "gelu",
            "vocab": 51200,
            "seq_len": 2048,
            "precision": "fp16",
            "framework": "Megatron-LM",
            "tp": tp,
            "pp": pp,
            "zero_stage": 0,
            "recompute": "full",
            "flash_attention": "no",
            "global_batch": batch,
            "step_time_s": seconds(hidden, layers, devices, batch, tflops),
        }
        for billion, heads, hidden, layers, tp, pp, devices, batch, tflops in NARAYANAN
    ]


def row(**cells: object) -> dict[str, object]:
    """A row that scores, changed by `cells`."""
    return {**narayanan_rows()[1], "row_id": "r", **cells}


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    names = list(dict.fromkeys(name for cells in rows for name in cells))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    return path
