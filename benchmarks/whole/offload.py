"""Offload beside published reports: whole steps, and what offloading adds to one.

Two rows saw a fit: `host_fraction` the update of 10 billion parameters, `unbound_fraction` that of
72 billion. The rate of staging comes from other sources. No report gives a step with and without
tiles. Reports whose host is not stated are compared on a host of that time, as their rows say.
"""

from __future__ import annotations

from planner import Layout, Workload, estimate
from planner.cost.constants import step_constants
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.cost.shards.stages import Stages
from planner.cost.step.optimizer import host_update_bytes, offload_step_s
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.model.model import Model

__all__ = ["rows"]

Row = tuple[str, str, float, float, str]
"""Label, unit, measured, estimated, and source with whether a fit has seen it."""

PAPER = "Ren et al. 2021, arXiv:2101.06840, table 4, 12 channels of DDR4-2666"
ISSUE_3901 = "deepspeedai/DeepSpeed issue 3901 (2023-07), defaults, as on p4d; held out"
STAS = "stas00/ml-engineering @744d01e, when-to-upgrade-gpus, DeepSpeed 0.19.2; held out"
ZENFLOW = "deepspeedai/DeepSpeed @edaa7221, blogs/deepspeed-zenflow, as on a DGX A100; held out"
BINDING = "deepspeedai/DeepSpeed pull request 7474, 2 A100 and 128 cores; held out"
FUSED = "deepspeedai/DeepSpeed issue 6834, 4 nodes of 8 A100; fitted"
SLOW = "deepspeedai/DeepSpeed issue 1635, 6 channels of DDR4-2400, reported as a bug; held out"

FALCON_7B = load_model("falcon-40b").replaced(
    num_layers=32,
    hidden_size=4544,
    num_heads=71,
    num_kv_heads=1,
    ffn_size=18176,
    max_sequence_length=4096,
)
"""By the model's config.json; sequences as the issue states them."""
QWEN_3B = load_model("qwen2.5-7b").replaced(
    num_layers=36,
    hidden_size=2048,
    num_heads=16,
    num_kv_heads=2,
    ffn_size=11008,
    vocab_size=151_936,
    tied_embeddings=True,
)
"""Qwen2.5 3B, by its config.json."""
STAS_TFLOPS = {"dgx-h200": ((8192, 141), (32768, 324)), "dgx-b200": ((8192, 167), (32768, 524))}
"""Sequence lengths, and model TFLOP/s per GPU with causal attention."""


def _update_s(params: float, peak: float, extra_bytes: bool = True) -> float:
    """Update of `params` parameters by one process, on a host of `peak` B/s [s]."""
    framework, model = load_framework("deepspeed"), load_model("gpt2")
    scenario = Scenario(model, load_machine("dgx-2"), Workload(), framework)
    moved = host_update_bytes(Stages.of(scenario, Layouts.of(Layout()), 0))
    moved -= 0.0 if extra_bytes else framework.offloading.step_host_bytes
    return params * moved / (peak * step_constants().optimizer.host_fraction.value)


def _host_step_s(model: Model, machine: str, layout: Layout, framework: str) -> float:
    """Optimizer step of an offloaded layout, with the upload of weights [s]."""
    job = Workload(sequence_length=1024, global_batch=layout.dp)
    scenario = Scenario(model, load_machine(machine), job, load_framework(framework))
    return float(offload_step_s(Stages.of(scenario, Layouts.of(layout), 0)))


def _added_s(offload: str, stage: int, besides: str = "none") -> float:
    """What `offload` adds to a step of Falcon 7B with offload `besides` [s]."""
    job = Workload(sequence_length=4096, global_batch=8)
    with_it, without = (
        estimate(
            FALCON_7B,
            "aws-p4d",
            Layout.described({"dp": 8, "zero_stage": stage, "offload": name, "recompute": "full"}),
            workload=job,
            framework="deepspeed+unbound+pageable",
        ).step_time_s
        for name in (offload, besides)
    )
    return with_it - without


def _stas_row(machine: str, length: int, tflops: float) -> Row:
    """A step of Llama-3.1-8B on 8 GPUs, from the operations that the source counts."""
    model = load_model("llama-3.1-8b")
    attention = 6 * length**2 * model.hidden_size * model.num_layers
    seconds = (6 * model.num_params * length + attention) / (tflops * 1e12)
    kernels = "+flash-attention-3" if machine == "dgx-h200" else ""
    found = estimate(
        model,
        machine,
        Layout(dp=8, zero_stage=3, offload="optimizer-cpu", recompute="full"),
        workload=Workload(sequence_length=length, global_batch=8),
        framework=f"deepspeed+liger+unbound{kernels}",
    )
    what = f"Llama-3.1-8B, 8 GPUs of {machine}, {length} tokens, ZeRO-3, states on the host: step"
    return what, "s", seconds, found.step_time_s, STAS


def rows() -> list[Row]:
    """Return rows: updates on the CPU, what offloading adds, and whole offloaded steps."""
    found: list[Row] = [
        (
            f"CPU-Adam, {params / 1e9:.0f} billion parameters",
            "s",
            seconds,
            _update_s(params, 256e9, extra_bytes=False),
            f"{PAPER}; {'fitted' if params == 1e10 else 'held out'}",
        )
        for params, seconds in ((1e9, 0.22), (4e9, 1.03), (1e10, 2.57))
    ]
    wide, two = Layout(dp=32, zero_stage=3, offload="all-cpu"), Layout(dp=2, zero_stage=2)
    moved = two.replaced(offload="optimizer-cpu")
    four = Layout(dp=4, zero_stage=2, offload="optimizer-cpu")
    shared, bound = (
        _host_step_s(QWEN_3B, "vsc-5", moved, f"deepspeed{w}") for w in ("+unbound", "")
    )
    slow = _host_step_s(load_model("qwen2.5-72b"), "dgx-a100", wide, "deepspeed+unbound")
    flow = _host_step_s(load_model("llama-2-7b"), "dgx-a100", four, "deepspeed+unbound")
    found += [
        ("Qwen 72B, 32 GPUs, all on the host, cores shared: optimizer", "s", 10, slow, FUSED),
        ("Qwen2.5-3B, 2 GPUs: what cores of their own save", "s", 0.701, shared - bound, BINDING),
        ("Llama-2-7B, 4 GPUs: update on the CPU, at least", "s", 4.0, flow, ZENFLOW),
        ("GPT of 1.35 billion, one RTX 3090", "s", 22.85, _update_s(1.35e9, 115.2e9), SLOW),
    ]
    found += [
        (f"Falcon-7B, 8 GPUs: {what}", "s", measured, _added_s(offload, stage, besides), ISSUE_3901)
        for what, measured, offload, stage, besides in (
            ("states to the host, ZeRO-2, adds", 9.60 - 2.93, "optimizer-cpu", 2, "none"),
            ("states and weights to the host, ZeRO-3, add", 13.70 - 2.86, "all-cpu", 3, "none"),
            ("weights to the host, ZeRO-3, add", 6.05 - 2.86, "all-cpu", 3, "optimizer-cpu"),
        )
    ]
    return found + [
        _stas_row(machine, length, tflops)
        for machine, measured in STAS_TFLOPS.items()
        for length, tflops in measured
    ]
