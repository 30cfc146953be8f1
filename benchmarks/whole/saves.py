"""Start-up, checkpoints and failures against published figures.

python benchmarks/whole/saves.py       # prints them
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner import Layout, Workload, load_framework, load_machine, load_model
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.training.training_run import Checkpoints, Failures, StartUp
from planner.training.resilience.checkpoints import (
    checkpoint_of,
    constants,
    saved_bytes,
    transfer_s,
)
from planner.training.resilience.failures import mean_time_between_failures_s, training_losses
from planner.training.resilience.start import communicators_s, imports_s, restart_s, start_up

__all__ = ["Row", "rows"]

Row = tuple[str, str, float, float, str]

TIB, GIB = 2**40, 2**30
BIGSCIENCE = "bigscience-workshop/bigscience@00327f8c train/tr11-176B-ml/README.md"
SC21 = "Narayanan et al. 2021, arXiv:2104.04473, section 5.10"
LLAMA = "Llama 3, arXiv:2407.21783, section 3.3"
RSC = "Kokolis et al. 2024, arXiv:2410.21680"
OPT = "OPT-175B, arXiv:2205.01068, section 2.5"
NCCL = "NCCL's Init timings"


def rows() -> list[Row]:
    """Return rows: label, unit, measured, estimated, and source with whether a fit has seen it."""
    return [*_sizes(), *_writing(), *_starting(), *_failing(), *_staying()]


def scenario(model: str, machine: str, framework: str, precision: str = "bf16") -> Scenario:
    """Make a scenario from catalogue names."""
    job = Workload(precision=precision)
    return Scenario(load_model(model), load_machine(machine), job, load_framework(framework))


def bloom() -> tuple[Scenario, Layouts]:
    """BLOOM-176B: Megatron-DeepSpeed, ZeRO-1, on 384 A100."""
    found = scenario("bloom-176b", "jean-zay-a100", "megatron-deepspeed")
    return found, Layouts.of(Layout(tp=4, pp=12, dp=8, zero_stage=1))


def trillion() -> tuple[Scenario, Layouts]:
    """The largest model of SC21: Megatron-LM on 3,072 A100."""
    found = scenario("ptdp-1t", "selene", "megatron-lm-2021", "fp16")
    return found, Layouts.of(Layout(tp=8, pp=64, dp=6))


def wordplay() -> tuple[Scenario, Layouts]:
    """wordplay on the four A100 of a Polaris node."""
    return scenario("wordplay-85m-char", "polaris", "ddp"), Layouts.of(Layout(dp=4))


def _sizes() -> Iterator[Row]:
    job, layouts = bloom()
    weights = float(saved_bytes(job, layouts, "weights")["weights"])
    whole = float(checkpoint_of(job, layouts).total_bytes)
    yield "BLOOM-176B, 16-bit weights", "GiB", 329, weights / GIB, f"{BIGSCIENCE}; definition"
    yield "BLOOM-176B, checkpoint", "TiB", 2.3, whole / TIB, f"{BIGSCIENCE}; held out"
    whole = float(checkpoint_of(*trillion()).total_bytes)
    yield "1T of Megatron-LM, checkpoint", "TB", 13.8, whole / 1e12, f"{SC21}; held out"
    job = scenario("mt-nlg-530b", "aws-p4d", "deepspeed", "fp16")
    states = saved_bytes(job, Layouts.of(Layout(dp=128, zero_stage=3)))
    minutes = float(sum(states.values())) / (20e9 / 8) / 60
    source = "GEMINI, SOSP 2023, section 1: model states of MT-NLG at 20 Gb/s; held out"
    yield "MT-NLG 530B, checkpoint over 20 Gb/s", "min", 42, minutes, source


def _writing() -> Iterator[Row]:
    saved = checkpoint_of(*wordplay())
    log = "log of wordplay on Polaris, checkpoints of 1.7 to 2.0 s, middle; held out"
    yield "wordplay, one rank writes to Eagle", "s", 1.85, float(saved.blocking_s), log
    saved = checkpoint_of(*bloom())
    source = "stas00/ml-engineering@05eb723b fault-tolerance/README.md; held out"
    yield "BLOOM-176B, 384 ranks write to GPFS", "s", 40, float(saved.blocking_s), source
    saved = checkpoint_of(*trillion())
    measured = 13.8e12 / 273e9
    source = f"{SC21}, 13.8 TB at 273 GB/s; held out"
    yield "1T of Megatron-LM, 512 ranks write", "s", measured, float(saved.blocking_s), source
    rate, machine = constants().writer_bytes_per_s.value, load_machine("dgx-b300")
    plain = Checkpoints()
    disk = float(transfer_s(machine, plain, 53e9, 53e9 / 8, 1, process_bytes_per_s=rate))
    source = "awslabs/awsome-distributed-ai#1225, 53 GB of 8 ranks to a local disk; held out"
    yield "Megatron-LM, 8 ranks write to a disk", "s", 8.3, disk, source
    job = scenario("llama-3-70b", "dgx-h200", "fsdp2")
    layouts = Layouts.of(Layout(dp=1856, zero_stage=3))
    staged = checkpoint_of(job, layouts, Checkpoints(asynchronous=True))
    source = "PyTorch blog 2025-04-30, 6x faster Async Checkpointing; fitted"
    yield (
        "Llama 3 70B, 1,856 GPUs, asynchronous: blocking",
        "s",
        0.78,
        float(staged.blocking_s),
        source,
    )
    source = source.replace("fitted", "after plans are cached, from 436 s before; fitted")
    yield "the same: in the background", "s", 67, float(staged.behind_s), source


def _starting() -> Iterator[Row]:
    for place, measured in (("file-system", 51.0), ("local-disk", 2.0), ("nfs", 236.0)):
        start = StartUp.described({"environment": place})
        source = "olcf/olcf-user-docs@2032b5a0 sbcast_conda.rst; fitted"
        what = f"import torch on 8 nodes of Frontier, {place}"
        yield what, "s", measured, float(imports_s(np.asarray(8.0), start)), source
    for ranks, measured, source in (
        (8, 2.46, "NVIDIA/nccl#534, NCCL 2.22, H100; held out"),
        (8, 0.75, "log of 8 ranks; held out"),
        (16, 1.58, "log of 16 ranks; held out"),
        (98_304, 57.96, "NVIDIA/nccl#1791; fitted"),
    ):
        found = float(communicators_s(Layouts.of(Layout(dp=ranks))))
        yield f"a communicator of {ranks:,} ranks", "s", measured, found, f"{NCCL}, {source}"
    layouts = Layouts.of(Layout(tp=8, pp=8, dp=98_304 // 64))
    source = "NCCLX, arXiv:2510.20171: NCCL at 96k GPUs; its layout is not stated; held out"
    yield "all communicators of 98,304 GPUs", "s", 265, float(communicators_s(layouts)), source
    parts = start_up(*wordplay())
    found = float(sum(part for name, part in parts.items() if name != "imports"))
    source = "log of wordplay, Startup time, without imports; building the model fitted"
    yield "wordplay, start on a node of Polaris", "s", 6.71, found, source


def _failing() -> Iterator[Row]:
    def hours(devices: int, failures: Failures | None = None) -> float:
        return float(mean_time_between_failures_s(devices, failures)) / 3600

    source = f"{LLAMA}.4, 419 in 54 days; fitted"
    yield "time between failures, 16,384 H100", "h", 54 * 24 / 419, hours(16_384), source
    week = 7 * 24 / hours(384)
    source = "BLOOM, arXiv:2211.05100, section 3.2.5, 1 to 2, middle; held out"
    yield "failures a week of 384 A100", "1", 1.5, week, source
    source = f"{OPT}, at least 35 manual and some 70 automatic restarts in 2 months; held out"
    yield "restarts of OPT-175B on 992 A100", "1", 105, 61 * 24 / hours(992), source
    own = Failures(per_device_hour=6.50e-3 / 24 / 8)
    for devices, measured, kind in (
        (1024, 7.9, "measured there; held out"),
        (16_384, 1.8, "projected there; definition"),
        (131_072, 0.23, "projected there; definition"),
    ):
        what = f"time between failures, {devices:,} A100 at 6.50 per 1000 node-days"
        yield what, "h", measured, hours(devices, own), f"{RSC}, {kind}"
    what = "time between failures, 16,384 A100 at the rate of Llama 3"
    yield what, "h", 1.8, hours(16_384), f"{RSC}, projected there; held out"


def _staying() -> Iterator[Row]:
    bloom_s = training_losses(90 * 86400, 40, 1e18, 0, 3 * 3600)
    share = 100 * float(bloom_s.checkpoints_s / bloom_s.total_s)
    source = "stas00/ml-engineering@05eb723b fault-tolerance/README.md; definition"
    yield "BLOOM-176B, saving of all time, 40 s every 3 h", "%", 0.37, share, source
    job = scenario("llama-3.1-405b", "grand-teton", "fsdp2")
    layouts = Layouts.of(Layout(tp=8, pp=16, dp=128, zero_stage=2))
    saved = checkpoint_of(job, layouts)
    write = max(float(saved.blocking_s), float(saved.total_bytes) / 2e12)
    mtbf = float(mean_time_between_failures_s(16_384))
    again = float(restart_s(job, layouts))
    found = float(training_losses(54 * 86400, write, mtbf, again).fraction)
    source = f"{LLAMA}.4, higher than 90 %; 2 TB/s of {LLAMA}.1; held out"
    yield "Llama 3 405B, effective training time, more than", "%", 90, 100 * found, source


if __name__ == "__main__":
    for what, unit, measured, estimate, source in rows():
        error = 100 * (estimate / measured - 1)
        print(f"{what:66}{measured:10.4g}{estimate:10.4g} {unit:4}{error:+7.1f} %  {source}")
