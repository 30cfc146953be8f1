"""Profile: a machine description from measurements, fitted through the planner's own formulas."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tomlkit
from tomlkit.items import InlineTable, Table

from planner.cost.constants import PROTOCOLS, Protocol
from planner.cost.network.collectives import all_gather_s, all_reduce_s, p2p_s, reduce_scatter_s
from planner.cost.network.topology import GroupView, unit_view
from planner.cost.step.compute.gemm import gemm_s
from planner.describe.machine import Machine
from planner.errors import PlannerError

_FITTED = {
    "all_reduce": all_reduce_s,
    "all_gather": all_gather_s,
    "reduce_scatter": reduce_scatter_s,
    "send_receive": p2p_s,
}
_RELATIVE = ("all_gather", "reduce_scatter", "send_recv")

_MAX_ERROR = 0.5
"""Mean |error| of a fit above which no profile is made."""


def machine_of(name: str, measured: dict[str, Any]) -> Machine:
    """Make the profile of one node from the measurements of `node_calibration`."""
    kernels, how = measured["kernels"], measured["how"]
    fields = {
        "name": name,
        "title": f"Measured: {measured['num_devices']} x {kernels['device']['name']}",
        "num_nodes": _quantity(1, how, "one node was measured"),
        "device": _device(measured),
        "node": _node(measured),
        "notes": tuple(measured["notes"]),
    }
    return Machine.described(fields, where=name)


def _quantity(
    value: float, how: str, quantity: str, kind: str = "measured", error: float = 0.0
) -> dict[str, Any]:
    if error > _MAX_ERROR:
        raise PlannerError(
            f"{quantity}: the fit misses its own measurements by {100 * error:.0f} % on average, "
            f"more than {100 * _MAX_ERROR:.0f} %; measure again on idle cores"
        )
    text = f"{quantity}, error {100 * error:.0f} %" if error else quantity
    fields = {"value": float(value), "kind": kind, "source": f"{text}; {how}"}
    return fields | {"error": float(error)} if error else fields


def _device(measured: dict[str, Any]) -> dict[str, Any]:
    kernels, how = measured["kernels"], measured["how"]
    device, runtime = kernels["device"], measured["runtime"]
    share = measured["num_devices"] if runtime == "cpu" else 1
    best = {
        precision: max(r["flop_per_s"] for r in kernels["gemm"] if r["precision"] == precision)
        for precision in dict.fromkeys(row["precision"] for row in kernels["gemm"])
    }
    sustained, gemm_error = _sustained(kernels, best, float(device["num_units"]))
    attention, attention_error = _attention(kernels, best)
    return {
        "name": device["name"],
        "runtime": runtime,
        "memory_bytes": _quantity(device["memory_bytes"] / share, how, "as the device reports"),
        "context_bytes": _quantity(device["context_bytes"], how, "resident after loading torch"),
        "communicator_bytes": _quantity(
            measured["communicator_bytes"], how, "growth at the first collective"
        ),
        "memory_bytes_per_s": _quantity(
            kernels["copy_bytes_per_s"], how, "copy, read plus written, all devices at once"
        ),
        "peak_flop_per_s": {
            precision: _quantity(rate, how, "fastest matrix product, not a datasheet peak")
            for precision, rate in best.items()
        },
        "num_units": _quantity(device["num_units"], how, "units or threads of one device"),
        "gemm_efficiency": _quantity(1, how, "the peak is itself the fastest product"),
        "sustained_fraction": _quantity(
            sustained, how, "median over sizes through gemm_s", error=gemm_error
        ),
        "grouped_gemm_fraction": _grouped(kernels, how),
        "attention_efficiency": _quantity(
            attention, how, "fused causal forward", error=attention_error
        ),
        "memory_efficiency": _quantity(1, how, "the bandwidth is itself a copy's"),
        "launch_s": _quantity(kernels["launch_s"], how, "chain of tiny operations"),
    }


def _grouped(kernels: dict[str, Any], how: str) -> dict[str, Any]:
    fraction = kernels["grouped_gemm_fraction"]
    if fraction is None:
        text = "not measured: this torch has no grouped product; SimuMax v1.2 has 0.62 on B200"
        return _quantity(0.62, how, text, "assumed")
    return _quantity(min(fraction, 1.0), how, "grouped over plain product in bf16")


def _sustained(
    kernels: dict[str, Any], best: dict[str, float], units: float
) -> tuple[float, float]:
    """Fit the sustained fraction so that `gemm_s` matches the median product; also its error."""
    ratios, trained = [], kernels["attention"][0]["precision"]
    for row in (row for row in kernels["gemm"] if row["precision"] == trained):
        element = 4 if row["precision"] in ("fp32", "tf32") else 2
        formula = gemm_s(
            row["m"],
            row["n"],
            row["k"],
            flop_per_s=best[row["precision"]],
            bytes_per_s=kernels["copy_bytes_per_s"],
            num_units=units,
            element_bytes=element,
            output_bytes=element,
        )
        ratios.append(float(formula) / row["time_s"])
    middle = float(np.median(ratios))
    error = float(np.mean(np.abs(np.array(ratios) / middle - 1)))
    return float(np.clip(middle, 1e-6, 1.0)), error


def _attention(kernels: dict[str, Any], best: dict[str, float]) -> tuple[float, float]:
    """Fit the attention efficiency of `planner.cost.step.compute.block_time`; also its error."""
    points = []
    for row in kernels["attention"]:
        reach = min(1.0, row["dim"] / 128) ** 0.25 * row["sequence"] / (row["sequence"] + 512)
        points.append(row["flop_per_s"] / best[row["precision"]] / reach)
    middle = float(np.median(points))
    error = float(np.mean(np.abs(np.array(points) / middle - 1)))
    return float(np.clip(middle, 1e-6, 1.0)), error


def _node(measured: dict[str, Any]) -> dict[str, Any]:
    how, kernels, count = measured["how"], measured["kernels"], measured["num_devices"]
    host = kernels["copy_bytes_per_s"] * (count if measured["runtime"] == "cpu" else 1)
    copies = kernels["host_copies"]
    link = min(copies.values()) if copies else kernels["copy_bytes_per_s"]
    link_text = "pinned copies, the slower direction" if copies else "device memory is host memory"
    if count == 1:
        fabric: dict[str, Any] = {
            "kind": "none",
            "efficiency": _quantity(1, how, "one device, not used", "assumed"),
            "latency_s": _quantity(0, how, "one device, not used", "assumed"),
        }
    else:
        figures, error = _links(measured["collectives"], measured["runtime"])
        text = "all_reduce, all_gather, reduce_scatter, send_recv in a step"
        rate = figures.pop("bytes_per_s")
        fabric = {
            "kind": "switch",
            "device_bytes_per_s": _quantity(rate, how, text, error=error),
            "efficiency": _quantity(1, how, "the rate is itself a collective's", error=error),
            **{name: _quantity(value, how, text, error=error) for name, value in figures.items()},
        }
    return {
        "num_devices": count,
        "num_cores": _quantity(measured["num_cores"], how, "cores this process may use"),
        "host_memory_bytes": _quantity(measured["host_memory_bytes"], how, "as the system reports"),
        "host_memory_bytes_per_s": _quantity(host, how, "copies of all ranks together"),
        "host_link_bytes_per_s": _quantity(link, how, link_text),
        "num_nics": 0,
        "fabric": fabric,
    }


def _links(rows: list[dict[str, Any]], runtime: str) -> tuple[dict[str, float], float]:
    """Fit latencies and rates of links to collectives by the planner's formulas; also the error."""
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise PlannerError(
            "fits need scipy, which is not installed; run pip install 'parallelism-planner[torch]'"
        ) from None
    used = [row for row in rows if row["name"] in _FITTED and "in_step_s" in row]
    if not used:
        raise PlannerError("no collectives were measured; calibrate two or more devices")
    fastest_s = min(row["in_step_s"] for row in used)
    first = {"latency_s": fastest_s, "bytes_per_s": max(r["bytes"] / r["in_step_s"] for r in used)}
    first |= dict.fromkeys(_RELATIVE, 1.0) | ({"start_s": fastest_s} if runtime == "cpu" else {})
    start = np.log(list(first.values()))

    def error(logs: Any) -> float:
        figures = dict(zip(first, np.exp(logs), strict=True))
        formulas = [_FITTED[r["name"]](on_one_node(r["ranks"], figures), r["bytes"]) for r in used]
        measured = [row["in_step_s"] for row in used]
        return float(np.mean(np.abs(np.log(np.divide(formulas, measured)))))

    # relative errors of times that span four decades have kinks: a search without derivatives
    simplex = np.vstack([start, start + np.eye(len(start))])
    options = {"initial_simplex": simplex, "maxfev": 4000}
    best = minimize(error, start, method="Nelder-Mead", options=options)
    return dict(zip(first, np.exp(best.x).tolist(), strict=True)), float(best.fun)


def on_one_node(ranks: int, figures: Mapping[str, float]) -> GroupView:
    """Network as seen by all ranks of one node."""
    size, rate = np.array(float(ranks)), np.array(figures["bytes_per_s"])
    return replace(
        unit_view(size),
        local=size,
        nodes=np.ones(()),
        local_bytes_per_s=rate,
        gathering_part=figures["all_gather"],
        scattering_part=figures["reduce_scatter"],
        neighbour_bytes_per_s=rate * figures["send_recv"],
        local_latency_s=np.array(figures["latency_s"]),
        protocols=(Protocol.single(figures["start_s"]),) if "start_s" in figures else PROTOCOLS,
    )


def toml_of(machine: Machine, comment: str) -> str:
    """Format the profile as TOML that `planner.describe.catalogue.load_machine` reads."""
    data = machine.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    data.pop("name")
    document = tomlkit.document()
    for line in comment.splitlines():
        document.add(tomlkit.comment(line))
    document.update(_table(data))
    return tomlkit.dumps(document)


def _table(data: dict[str, Any]) -> Table:
    table = tomlkit.table()
    inner = {k: v for k, v in data.items() if isinstance(v, dict) and "source" not in v}
    for name, value in data.items():
        if name not in inner:
            table.add(name, _quantity_line(value) if isinstance(value, dict) else value)
    for name, value in inner.items():
        table.add(name, _table(value))
    return table


def _quantity_line(quantity: dict[str, Any]) -> InlineTable:
    line = tomlkit.inline_table()
    # a measurement is no more precise than seven digits
    line.update({k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in quantity.items()})
    return line
