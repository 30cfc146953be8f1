"""Data parallelism at scale: CosmoFlow on Polaris, ResNet-50 on P100 and its records.

CosmoFlow: the logs of argonne-lcf/dl_scaling @f09626e, cosmoflow_pytorch/results, of July and
August 2023; the median over epochs of an epoch's time over its steps. Steps are those that the loop
counted, derived from the logged throughput: the loader yields whole batches of 16 samples, so that
each of 1,024 ranks takes 32 steps an epoch, not the 20.5 of its samples. Polaris had Slingshot 10
then, two ports of 100 Gb/s (argonne-lcf/user-guides @c67aea4c). Samples were on node-local disks;
evaluation, which reads as many and sends nothing, took 13 to 17 ms a step on any number of nodes,
so only communication grows with the nodes.

No collectives on that network were published, and these all-reduces took tens of times as long as
today's. One constant, the time of one tree level, models this; it is fitted on half of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import planner
from planner.describe.catalogue import load_framework, load_machine, names
from planner.describe.framework.framework import Framework
from planner.describe.machine.machine import Machine
from planner.describe.workload import TrainingPrecision

__all__ = [
    "COSMOFLOW",
    "FITTED",
    "RECORDS",
    "Record",
    "Row",
    "cosmoflow_s",
    "resnet",
    "resnet_s",
    "rows",
]

Row = tuple[str, str, float, float, str]
"""Label, unit, measured, estimated, source."""

COSMOFLOW = {
    "horovod": {
        2: 0.0392,
        4: 0.0948,
        8: 0.1230,
        16: 0.1734,
        32: 0.1947,
        64: 0.2140,
        128: 0.2271,
        256: 0.2483,
    },
    "ddp": {
        2: 0.0401,
        4: 0.1268,
        8: 0.2730,
        16: 0.7403,
        32: 0.2532,
        64: 0.3761,
        128: 0.4092,
        256: 0.4471,
    },
}
"""Step time [s] by framework and nodes of four devices, one sample per device: jobs 565618 to
570304 of 20,992 samples, and for Horovod on 8 nodes job 563371 of 256. Ten more DDP jobs took 0.61
to 0.66 s on 16 nodes, nine took 0.23 to 0.25 s on 32 nodes: the time on 16 is not noise."""
FITTED = (4, 16, 64, 256)
"""Nodes on which the constant was fitted, with both frameworks: least mean of
|log(estimate / measured)| among multiples of 0.5 ms; the other nodes are held out."""
_LEVEL_S = 15.5e-3
_NETWORK_2023 = ("node.nic_bytes_per_s=12.5e9", f"network.large_message_latency_s={_LEVEL_S}")

_TENSORFLOW = {
    32: {1: 195, 2: 368, 4: 768, 8: 1485},
    64: {1: 219, 2: 422, 4: 852, 8: 1734},
}
"""Images per second by batch per device and devices, synthetic data, TensorFlow 1.1 on a DGX-1 with
P100, May 2017: tensorflow/tensorflow @5984ffef, tensorflow/docs_src/performance/benchmarks.md. Its
resnet50 is v1 (tensorflow/benchmarks @039fa955, scripts/tf_cnn_benchmarks/models/resnet_model.py).
The profile's `sustained_fraction` was fitted on 1 and 4 devices."""
_TITAN_X = ("device.peak_flop_per_s.fp32=10.16e12", "device.memory_bytes_per_s=480e9")
"""A Pascal Titan X in place of the P100: its arithmetic as the source states it, its memory by
general knowledge."""
_TITAN_X_S = 0.10358
"""Forward and backward pass of 16 images, fb.resnet.torch (v1.5), cuDNN 5.1.05:
jcjohnson/cnn-benchmarks @2ee75e2b, README.md, ResNet-50."""

IMAGES = 1_281_167
"""Images of ImageNet's training set: Russakovsky et al. 2015, arXiv:1409.0575, table 2."""
_TABLE = "arXiv:1903.12650 table 1"


@dataclass(frozen=True, slots=True)
class Record:
    """A published training of ResNet-50, and the software that it ran."""

    authors: str
    machine: str
    devices: int
    batch: int
    precision: TrainingPrecision
    epochs: int
    seconds: float
    source: str
    model: str = "resnet-50"
    """v1 where the code of the authors is; v1.5 (arXiv:1706.02677) otherwise."""
    chainermn: bool = False

    @property
    def evaluations(self) -> float:
        """Evaluations of 50,000 images in batches of a step: one an epoch where the code says so.

        chainer/chainermn @2f1defcc, examples/imagenet/train_imagenet.py: `val_interval`.
        """
        return self.epochs * math.ceil(50_000 / self.batch) if self.chainermn else 0.0

    @property
    def steps(self) -> int:
        """Steps of all epochs at the stated batch."""
        return self.epochs * math.ceil(IMAGES / self.batch)

    def estimate(self, framework: Framework | str = "") -> planner.Estimate:
        """Estimate a step; by default under DDP, where 16-bit training reduces in 16 bits."""
        if not framework and self.chainermn:
            framework = _chainermn()
        usual = "ddp+bf16-reduction" if self.precision == "fp16" else "ddp"
        return resnet(
            self.machine,
            self.devices,
            self.batch,
            self.precision,
            model=self.model,
            framework=framework or usual,
        )


RECORDS = (
    Record(
        "He", "big-basin", 8, 256, "fp32", 90, 29 * 3600, f"{_TABLE}; 90 epochs: arXiv:1706.02677"
    ),
    Record("Goyal", "big-basin", 256, 8192, "fp32", 90, 3600, "arXiv:1706.02677, 90 epochs"),
    Record(
        "Akiba",
        "mn-1",
        1024,
        32768,
        "fp32",
        90,
        900,
        "arXiv:1711.04325, abstract; v1: chainer/chainermn @db773b02, examples/imagenet",
        model="resnet-50-v1",
        chainermn=True,
    ),
    Record("Mikami", "abci", 3456, 55296, "fp16", 90, 120, f"{_TABLE}; 90 epochs assumed"),
    Record(
        "Yamazaki",
        "abci",
        2048,
        81920,
        "fp16",
        1,
        IMAGES / 1.73e6,
        "arXiv:1903.12650, abstract: 1.73 million images/s",
    ),
)
"""TPUs and the machine of 2,048 P40 (Jia et al. 2018, 6.6 min) have no profile."""


def _chainermn() -> Framework:
    """ChainerMN of 2017: reduces all gradients after the backward pass, in 16 bits.

    chainer/chainermn @2f1defcc (2017-10), chainermn/optimizers.py: `allreduce_grad` before
    `update`; double buffering came in 1.2. 16 bits: arXiv:1711.04325.
    """
    framework = load_framework("ddp+bf16-reduction")
    reduction = {**framework.reduction.model_dump(), "after_backward": [0]}
    return framework.replaced(reduction=reduction)


def cosmoflow_s(framework: str, nodes: int) -> float:
    """Estimated step time of CosmoFlow on the Polaris of 2023 [s]."""
    job = planner.Workload(
        sequence_length=1, global_batch=4 * nodes, precision="fp16", optimizer="sgd-momentum"
    )
    machine = load_machine("polaris", _NETWORK_2023)
    layout = planner.Layout(dp=4 * nodes)
    found = planner.estimate("cosmoflow", machine, layout, workload=job, framework=framework)
    return found.step_time_s


def resnet(
    machine: Machine | str,
    devices: int,
    batch: int,
    precision: TrainingPrecision,
    *,
    model: str = "resnet-50",
    framework: Framework | str = "ddp",
) -> planner.Estimate:
    """Estimate a step of ResNet-50 with equal shares of the batch on all devices."""
    job = planner.Workload(
        sequence_length=1, global_batch=batch, precision=precision, optimizer="sgd-momentum"
    )
    layout = planner.Layout(dp=devices, micro_batch=batch // devices)
    return planner.estimate(model, machine, layout, workload=job, framework=framework)


def resnet_s(devices: int, batch: int) -> float:
    """Estimated step time of ResNet-50 v1 on P100, as TensorFlow 1.1 ran it [s]."""
    return resnet("big-basin", devices, batch, "fp32", model="resnet-50-v1").step_time_s


def rows() -> list[Row]:
    """Return all rows; none for convolutional models that the catalogue only lists."""
    if "cosmoflow" not in names("model"):
        return []
    records = list(_records())
    return [*_cosmoflow(), *_tensorflow(), *records, *_speed_ups(records)]


def _cosmoflow() -> Iterator[Row]:
    for framework, measured in COSMOFLOW.items():
        for nodes, step_s in measured.items():
            half = "fitted" if nodes in FITTED else "held out"
            what = f"CosmoFlow, {framework}, {nodes} nodes of Polaris with Slingshot 10, a step"
            source = f"argonne-lcf/dl_scaling @f09626e; {half}"
            yield what, "s", step_s, cosmoflow_s(framework, nodes), source


def _tensorflow() -> Iterator[Row]:
    for each, rates in _TENSORFLOW.items():
        for devices, rate in rates.items():
            batch, half = devices * each, "fitted" if devices in (1, 4) else "held out"
            what = f"ResNet-50 v1, {devices} P100, {each} images a device, a step"
            source = f"tensorflow @5984ffef, docs_src/performance/benchmarks.md; {half}"
            yield what, "s", batch / rate, resnet_s(devices, batch), source
    titan = resnet(load_machine("big-basin", _TITAN_X), 1, 16, "fp32")
    passes_s = titan.step_time_s - titan.step_time_parts_s["optimizer"]
    what = "ResNet-50, 1 Pascal Titan X, 16 images, forward and backward"
    source = "jcjohnson/cnn-benchmarks @2ee75e2b, Torch with cuDNN 5.1; held out"
    yield what, "s", _TITAN_X_S, passes_s, source


def _records() -> Iterator[Row]:
    for record in RECORDS:
        plural = "epochs" if record.epochs > 1 else "epoch"
        what = (
            f"ResNet-50, {record.authors}, {record.devices:,} devices, "
            f"batch {record.batch:,}, {record.epochs} {plural}"
        )
        estimate = record.steps * record.estimate().step_time_s
        yield what, "s", record.seconds, estimate, f"{record.source}; held out"


def _speed_ups(records: list[Row]) -> Iterator[Row]:
    """Yield speed-ups of 256 and 1,024 P100 over 8; the kernel times of 2017 cancel out."""
    one, *more = records[:3]
    for record, devices in zip(more, (256, 1024), strict=True):
        what = f"ResNet-50, {devices:,} P100 over 8, 90 epochs"
        yield what, "1", one[2] / record[2], one[3] / record[3], "records; held out"
