"""Image networks and T5 against their papers, torch, and NVIDIA's published rates."""

from __future__ import annotations

from dataclasses import dataclass

from planner import Layout, Workload, estimate, load_model
from planner.cost.operators.blocks import blocks
from planner.describe.catalogue import load_framework

__all__ = ["RESNET", "T5", "T5_GPUS", "Row", "Vendor", "rows", "t5_tokens_per_s"]

Row = tuple[str, str, float, float, str]
"""Label, unit, measured, estimated, and source with whether a fit has seen it."""

_EXAMPLES = "NVIDIA/DeepLearningExamples@729963dd, ConvNets/resnet50v1.5/README.md"


@dataclass(frozen=True, slots=True)
class Vendor:
    """A published rate of ResNet-50 v1.5, with the batch per GPU of the source's `configs.yml`."""

    machine: str
    precision: str
    batch: int
    gpus: int
    images_per_s: float

    @property
    def fitted(self) -> bool:
        """True for fp16 rows, on which `convolution_fraction` was fitted."""
        return self.precision == "fp16"

    def estimate(self) -> float:
        """Estimated images per second [1/s]."""
        job = Workload.described(
            {
                "sequence_length": 1,
                "global_batch": self.batch * self.gpus,
                "precision": self.precision,
                "optimizer": "sgd-momentum",
            }
        )
        # channels-last only with fp16 (configs.yml: memory_format)
        framework = "ddp+channels-last" if self.precision == "fp16" else "ddp"
        layout = Layout(dp=self.gpus, micro_batch=self.batch)
        found = estimate("resnet-50", self.machine, layout, workload=job, framework=framework)
        return self.batch * self.gpus / found.step_time_s


RESNET = (
    Vendor("dgx-a100", "tf32", 256, 1, 938),
    Vendor("dgx-a100", "fp16", 256, 1, 2470),
    Vendor("dgx-a100", "tf32", 256, 8, 7248),
    Vendor("dgx-a100", "fp16", 256, 8, 16621),
    Vendor("dgx-1v", "fp32", 112, 1, 367),
    Vendor("dgx-1v", "fp16", 256, 1, 1200),
    Vendor("dgx-1v", "fp32", 112, 8, 2855),
    Vendor("dgx-1v", "fp16", 256, 8, 8322),
    Vendor("dgx-1v", "fp32", 112, 1, 356),
    Vendor("dgx-1v", "fp16", 256, 1, 1156),
    Vendor("dgx-1v", "fp32", 112, 8, 2766),
    Vendor("dgx-1v", "fp16", 256, 8, 8056),
)
"""Training performance of its README: DGX A100 80GB, DGX-1 with 16 GB, DGX-1 with 32 GB."""


T5 = {
    "t5-3b-nemo": (13846.1, 13473.7, 13051.4, 12877.5, 11968.8, 10164.7),
    "mt5-3b-nemo": (11395.8, 11223.9, 10820.7, 10727.2, 9982.12, 8148.54),
}
"""Tokens/s per GPU of both 3B models: NVIDIA/NeMo-Megatron-Launcher, README of 23.03."""

T5_GPUS = (8, 16, 32, 40, 80, 160)


def t5_tokens_per_s(model: str, gpus: int) -> float:
    """Estimated encoder tokens per second and GPU [1/s].

    Micro-batch, batch and layout are those of its configuration
    (NVIDIA/NeMo-Framework-Launcher@3a52a8f7, conf/training/t5/3b.yaml): 24, 1920, tp 2, distributed
    optimizer, no recompute; attention was not yet fused.
    """
    job = Workload(sequence_length=512, global_batch=1920, attention="eager")
    replicas = gpus // 2
    layout = Layout(
        dp=replicas, tp=2, zero_stage=1, micro_batch=24, grad_accumulation=80 // replicas
    )
    found = estimate(model, "selene", layout, workload=job, framework="megatron-lm")
    return found.tokens_per_s / gpus


def _macs(name: str) -> float:
    """Multiply-adds of a sample's forward pass [1e9]."""
    job = Workload(sequence_length=1)
    found = blocks(load_model(name), job, load_framework("ddp"))
    return sum(b.count * g.rows * g.n * g.k for b in found for g in b.gemms) / 1e9


def rows() -> list[Row]:
    """Return rows: network sizes, rates of ResNet-50, and a CosmoFlow step without its input."""
    found: list[Row] = [
        (
            "ResNet-50, parameters",
            "1",
            25_557_032,
            load_model("resnet-50").num_params,
            "torchvision, models.resnet50; definition",
        ),
        (
            "ResNet-50 v1.5, multiply-adds of a picture",
            "GMAC",
            4.089,
            _macs("resnet-50"),
            "torchvision, models.resnet50: GFLOPS 4.09; definition",
        ),
        (
            "3D U-Net of MLPerf, parameters",
            "1",
            31_190_243,
            load_model("unet3d-mlperf").num_params,
            "mlcommons/training@aa344c7f, retired_benchmarks/unet3d; definition",
        ),
    ]
    for row in RESNET:
        what = f"ResNet-50, {row.gpus} GPUs of {row.machine}, {row.precision}"
        how = "fitted" if row.fitted else "held out, its mechanisms chosen with it in sight"
        found.append((what, "images/s", row.images_per_s, row.estimate(), f"{_EXAMPLES}; {how}"))
    for model, gpus, measured in (
        (model, gpus, rate)
        for model, rates in T5.items()
        for gpus, rate in zip(T5_GPUS, rates, strict=True)
    ):
        how = "NVIDIA/NeMo-Megatron-Launcher 23.03, README, 512 tokens of 640 counted; held out"
        rate = t5_tokens_per_s(model, gpus)
        found.append((f"{model}, {gpus} A100", "tokens/s per GPU", measured, rate, how))
    job = Workload(sequence_length=1, global_batch=8, precision="fp16", optimizer="sgd-momentum")
    step = estimate(
        "cosmoflow", "polaris", Layout(dp=8), workload=job, framework="ddp+channels-last"
    )
    found.append(
        (
            "CosmoFlow, 8 GPUs of Polaris, computation and traffic alone",
            "s",
            0.0403,
            step.step_time_s,
            "argonne-lcf/dl_scaling@f09626eb, cosmoflow_pytorch/results, median step; held out; "
            "evaluation without gradients takes 0.017 s a step there: input, not computation",
        )
    )
    return found
