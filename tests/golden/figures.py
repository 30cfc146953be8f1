"""Every figure whole, of small plans and of machines: numbers, words and looks.

Only plotly's own template is left out.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np

import planner
from planner import Layout, Workload, ask, figures
from planner.evidence.learning import learn_from_text
from planner.evidence.logs.comparison import compare
from planner.evidence.logs.log_job import read_job
from planner.evidence.residuals import Residual
from planner.show.figures import accuracy
from tests.evidence.logs import test_logs as logs
from tests.evidence.logs.texts import read_log_text

RESIDUALS = tuple(
    Residual(
        row=f"row {n}",
        source=f"source {n % 3}",
        site="polaris",
        seen=n % 2 == 0,
        step_time=0.8 + 0.1 * n,
        memory=1.2 - 0.05 * n,
    )
    for n in range(7)
)
TIMES_MS = [900, 220, 950, 231, 928, 230, 935, 229, 950, 240]
MOST = 12
"""Values of a list that are kept, evenly spread; their number is kept as well."""
_DIGITS = 9
RUNS = (
    "row_id,system,gpu,n_gpus,model,seq_len,framework,dp,tp,pp,zero_stage,micro_batch,"
    "global_batch,step_time_s,peak_memory_gib,memory_kind,precision,flash_attention\n"
    "one,Polaris,A100,8,Llama-3.2-1B,4096,FSDP2,8,1,1,3,2,64,3.1,19,nvidia-smi,bf16,yes\n"
    "two,Polaris,A100,8,GPT-2 XL,1024,DDP,8,1,1,0,1,64,0.9,33,nvidia-smi,bf16,yes\n"
    "three,Polaris,A100,16,Llama-3-8B,4096,Megatron-LM,4,4,1,1,1,64,6.5,34,nvidia-smi,bf16,yes\n"
)


def drawings() -> Iterator[tuple[str, Any]]:
    """Yield every figure with a name."""
    job = Workload(sequence_length=1024, global_batch=64, tokens=2e9)
    data = planner.plan("llama-3.2-1b", "polaris", nodes=2, workload=job, frameworks="fsdp2")
    deep = Layout(dp=2, tp=2, pp=4, schedule="1f1b", zero_stage=1, grad_accumulation=32)
    piped = planner.estimate("llama-3.2-1b", "polaris", deep, workload=job, framework="megatron-lm")
    for name in ("strategy_bars", "heatmap", "pareto", "whole_training", "host_bars"):
        yield name, getattr(figures, name)(data)
    where = {"model": "llama-3.2-1b", "machine": "polaris"}
    for name in ("gantt", "link_loads", "memory_over_step", "stage_bars"):
        yield name, getattr(figures, name)(data, piped, **where)
    yield "waterfall", figures.waterfall(piped)
    for axis in ("dp", "tp", "pp"):
        yield f"rank_map {axis}", figures.rank_map(data, piped, axis, machine="polaris")
    both = {"data": data.ranked[0], "deep": piped}
    yield "memory_bars", figures.memory_bars(both, machine="polaris")
    yield "time_bars", figures.time_bars(both)
    for machine in ("polaris", "aurora", "dgx-gb200", "workstation-2x4090"):
        yield f"topology {machine}", figures.topology(machine)
        yield f"bandwidth {machine}", figures.bandwidth(machine)
        yield f"times {machine}", figures.times(machine, "all-gather")
    yield "data_picture", figures.data_picture("reduce-scatter")
    log = read_log_text(logs.MEGATRON + logs._many(logs.MEGATRON, "ms", TIMES_MS), "run.log")
    told = {"model": "llama-3.2-1b", "framework": "megatron-lm", "sequence_length": 2048}
    layout = {"dp": 8, "tp": 2, "sequence_parallel": True, "zero_stage": 1, "grad_accumulation": 16}
    comparison = compare(log, read_job(log, "polaris", {"layout": layout}, **told))
    learned = learn_from_text(RUNS, "runs.csv")
    yield "measured step", _said(accuracy.measured_step(comparison))
    for quantity in ("step_time", "memory"):
        yield f"spread {quantity}", _said(accuracy.spread(RESIDUALS, quantity))
    yield "errors", figures.errors(learned)
    yield "parity", figures.parity(learned)
    for name, answer in (
        ("scaling", ask.scaling("gpt2", "polaris", most_nodes=4, workload=job, frameworks="ddp")),
        ("change", ask.change("gpt2", "workstation-1x4090", workload=job.replaced(global_batch=8))),
        ("batch", ask.batch("gpt2", "polaris", within=2.0, workload=job, frameworks="ddp")),
    ):
        yield f"curve {name}", figures.curve(answer)


def _said(drawing: Any) -> Any:
    """The figure of a drawing of the explorer, which says its text beside it."""
    return drawing.figure.update_layout(meta={"alt": drawing.alt})


def drawn() -> dict[str, Any]:
    """Return what every figure is made of."""
    return {name: _parts(figure.to_plotly_json()) for name, figure in drawings()}


def _parts(value: Any) -> Any:
    """Return words and rounded numbers; of a long list its length, then at most MOST values."""
    if isinstance(value, str | bool | None):
        return value
    if isinstance(value, dict) and "bdata" in value:
        array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
        return _parts(
            array.reshape([int(size) for size in str(value.get("shape", "-1")).split(",")])
        )
    if isinstance(value, dict):
        return {name: _parts(value[name]) for name in sorted(value) if name != "template"}
    if hasattr(value, "__iter__"):
        values = list(value)
        step = max(-(-len(values) // MOST), 1)
        return [len(values), *map(_parts, values[::step])]
    # to the digits that all processors agree on
    return float(f"{float(value):.{_DIGITS}g}")
