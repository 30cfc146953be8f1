"""Utilisation of accelerators that wait for data: MLPerf Storage's results and estimates.

python benchmarks/whole/input.py     # every row, and how far the held-out ones are off

`storage_results.csv` holds every submission to the closed division of MLPerf Storage v1.0 with two
or more runs of one workload on one system and number of hosts: system, dataset, simulated
accelerator, hosts, accelerators, and the utilisation (mean of five runs) that summary.json states.
In each group, the run with the highest demand on the storage gives the rate that the system
delivers (fitted); the others are estimated with that rate (held out).
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.describe.catalogue import load_dataset, load_machine
from planner.describe.machine import Machine
from planner.describe.training.training_run import Dataset, Loader, Staging
from planner.training.data import input_time
from planner.training.data.input import constants

__all__ = ["HAND_OVER", "Run", "groups", "held_out", "polaris", "rows"]

RESULTS = "github mlcommons/storage_results_v1.0 @64c2ce48 (2024-09-25), Closed"
FIRST_RESULTS = "github mlcommons/storage_results_v0.5 @92b88d78, closed/ANL/results"

STEPS = {
    ("unet3d", "v100"): (4, 1.3604),
    ("bert", "v100"): (48, 0.968),
    ("unet3d", "a100"): (7, 0.636),
    ("unet3d", "h100"): (7, 0.323),
    ("imagenet", "a100"): (400, 0.435),
    ("imagenet", "h100"): (400, 0.224),
    ("cosmoflow", "a100"): (1, 0.00551),
    ("cosmoflow", "h100"): (1, 0.00350),
}
"""Batch per accelerator and computing time of a step [s]: mlcommons/storage @caa90c9c,
configs/dlio/workload; for the V100 argonne-lcf/dlio_benchmark @e1919d7b."""

HAND_OVER = ("YanRongTech/F8000X_8x7000GiB_nvme_2xHDR200", 1)
"""System and number of hosts whose one-accelerator runs the constant `hand_over_s` is fitted on."""


DATALOADER = (
    (0, 0.080, 0.491),
    (1, 0.020, 0.244),
    (1, 0.080, 0.959),
    (2, 0.020, 0.493),
    (2, 0.060, 0.963),
    (4, 0.010, 0.505),
    (4, 0.030, 0.952),
    (8, 0.005, 0.506),
    (8, 0.020, 0.939),
)
"""Own measurement: workers, step time [s] and utilisation with torch 2.13's DataLoader and batches
of 8 samples of 10 ms; mean of two runs of loader.py on two shared cores, 2026-11."""


@dataclass(frozen=True, slots=True)
class Run:
    """One row of the results."""

    system: str
    dataset: str
    accelerator: str
    hosts: int
    accelerators: int
    utilisation: float
    """Mean of five runs, as a fraction."""

    @property
    def batch(self) -> int:
        """Samples per step and accelerator."""
        return STEPS[self.dataset, self.accelerator][0]

    @property
    def step_s(self) -> float:
        """Computing time of a step [s]."""
        return STEPS[self.dataset, self.accelerator][1]

    @property
    def step_bytes(self) -> float:
        """Bytes that a step of all accelerators reads [B]."""
        size = load_dataset(self.dataset).sample_bytes.value
        return self.accelerators * self.batch * size

    @property
    def name(self) -> str:
        """Name of the run in tables."""
        return f"{self.dataset}, {self.accelerators} {self.accelerator} on {self.hosts} hosts"


def groups() -> Iterator[tuple[Run, list[Run]]]:
    """Yield the fitted run and the held-out runs of each system, dataset and host count."""
    path = Path(__file__).with_name("storage_results.csv")
    with path.open(encoding="utf-8") as file:
        runs = [
            Run(
                row["system"],
                row["dataset"],
                row["accelerator"],
                int(row["hosts"]),
                int(row["accelerators"]),
                float(row["utilisation_percent"]) / 100,
            )
            for row in csv.DictReader(file)
        ]
    for _, some in itertools.groupby(runs, lambda run: (run.system, run.dataset, run.hosts)):
        group = list(some)
        most = max(group, key=lambda run: run.step_bytes / run.step_s)
        yield most, [run for run in group if run is not most]


def delivered_rate(run: Run) -> float:
    """Rate that a run's storage delivered [B/s]: a step took its time over the utilisation."""
    return run.step_bytes / (run.step_s / run.utilisation)


def estimated(run: Run, rate: float) -> float:
    """Estimated utilisation of a run if only the storage rate limits its input."""
    found = input_time(
        _clients(run.hosts, rate),
        run.hosts,
        run.accelerators / run.hosts,
        run.accelerators * run.batch,
        run.step_s,
        _emulated(run.dataset),
        Loader(),
    )
    return float(found.utilisation)


def _clients(hosts: int, rate: float) -> Machine:
    """Make hosts without bottlenecks of their own that read from storage of a given rate."""

    def stated(value: float) -> dict[str, Any]:
        return {"value": value, "kind": "assumed", "source": "a host that holds nothing up"}

    machine = load_machine("dgx-h100")
    node = machine.node.model_dump() | {
        "nic_bytes_per_s": stated(1e13),
        "host_memory_bytes_per_s": stated(1e15),
        "host_link_bytes_per_s": stated(1e13),
    }
    system = {"name": "storage", "kind": "any", "bytes_per_s": stated(rate)}
    return machine.replaced(node=node, file_systems=(system,), num_nodes=stated(float(hosts)))


def _emulated(name: str) -> Dataset:
    """Load a dataset without decoding time, because DLIO decodes nothing."""
    nothing = {"value": 0.0, "kind": "datasheet", "source": "DLIO decodes nothing"}
    return load_dataset(name).replaced(decode_s=nothing)


def held_out() -> list[tuple[Run, float]]:
    """Return the runs that nothing was fitted on, with the estimated utilisation."""
    return [
        (run, estimated(run, delivered_rate(most)))
        for most, others in groups()
        for run in others
        if not (run.accelerators == 1 and (run.system, run.hosts) == HAND_OVER)
    ]


def polaris() -> list[tuple[str, float, float, str]]:
    """Return runs on one Polaris node: label, utilisation measured and estimated, source.

    Nothing is fitted. Eight simulated V100 per node; utilisations are from run1's summary.json.
    """
    machine = load_machine("polaris")
    found = []
    staged: dict[str, Staging] = {"lustre": "none", "nvme": "local-disk"}
    for system, dataset, measured in (
        ("lustre", "unet3d", 0.9967),
        ("nvme", "unet3d", 0.9965),
        ("lustre", "bert", 0.9952),
    ):
        batch, step_s = STEPS[dataset, "v100"]
        job = machine, 1, 8, 8 * batch, step_s, _emulated(dataset)
        time = input_time(*job, Loader(staging=staged[system]))
        what = f"Accelerator utilisation, {dataset} on one Polaris node from {system}"
        source = f"{FIRST_RESULTS}/polaris-{system}-Nacc8-Nhosts1/{dataset}; held out"
        found.append((what, measured, float(time.utilisation), source))
    return found


def dataloader() -> list[tuple[int, float, float, float]]:
    """Return workers, step time [s], utilisation measured and estimated; nothing is fitted."""
    ten_ms = {"value": 0.010, "kind": "assumed", "source": "what loader.py sleeps for a sample"}
    dataset = load_dataset("imagenet").replaced(decode_s=ten_ms)
    machine = _clients(1, 1e12)
    return [
        (
            workers,
            step_s,
            measured,
            float(
                input_time(machine, 1, 1, 8, step_s, dataset, Loader(workers=workers)).utilisation
            ),
        )
        for workers, step_s, measured in DATALOADER
    ]


def rows() -> list[tuple[str, str, float, float, str]]:
    """Return rows: label, unit, measured, estimated, source; a median for the 57 held-out runs."""
    runs = held_out()
    by_dataset = {
        name: [(run, one) for run, one in runs if run.dataset == name]
        for name in ("unet3d", "imagenet", "cosmoflow")
    }
    listed = [
        (
            f"Accelerator utilisation, {name}: median of {len(some)} runs",
            "%",
            100 * float(np.median([run.utilisation for run, _ in some])),
            100 * float(np.median([one for _, one in some])),
            f"{RESULTS}; held out",
        )
        for name, some in by_dataset.items()
    ]
    listed += [(what, "%", 100 * m, 100 * e, source) for what, m, e, source in polaris()]
    listed += [
        (
            f"Utilisation, torch's DataLoader, {workers} workers, steps of {1000 * step_s:g} ms",
            "%",
            100 * measured,
            100 * estimate,
            "own measurement, benchmarks/whole/loader.py; held out",
        )
        for workers, step_s, measured, estimate in dataloader()
    ]
    return [*listed, *_hand_over()]


def _hand_over() -> list[tuple[str, str, float, float, str]]:
    """Return rows for the runs that the batch hand-over time was fitted on."""
    hand_over = constants().hand_over_s.value
    return [
        (
            f"Accelerator utilisation: {run.name}, {run.system}",
            "%",
            100 * run.utilisation,
            100 * run.step_s / (run.step_s + hand_over),
            f"{RESULTS}/{run.system}; fitted",
        )
        for _, others in groups()
        for run in others
        if run.accelerators == 1 and (run.system, run.hosts) == HAND_OVER
    ]


def main() -> None:
    """Print every held-out run and the errors over all of them."""
    runs = held_out()
    for run, one in runs:
        print(f"{100 * run.utilisation:5.1f} {100 * one:5.1f}  {run.name}, {run.system}")
    off = [100 * (one - run.utilisation) for run, one in runs]
    within = sum(abs(each) <= 10 for each in off)
    print(
        f"{len(off)} held out: mean {np.mean(off):+.1f}, mean size {np.mean(np.abs(off)):.1f}, "
        f"most {np.max(np.abs(off)):.1f} points; {within} within 10"
    )
    for row in rows():
        print(row)


if __name__ == "__main__":
    main()
