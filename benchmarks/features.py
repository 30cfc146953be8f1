"""Features with little evidence: the best published figure of each beside the estimate.

    python benchmarks/features.py     # writes docs/reference/features.md

FSDP's names, Ulysses, tiles, offload to NVMe, LoRA and QLoRA, SHARP. No constant was fitted on any
row. Where no measurement was found, the page says where one was looked for.
`tests/evidence/test_cited.py` computes every row again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from cited import GB, Figure, tables

import planner
from planner.cost.network.collective_table import whole_nodes
from planner.cost.network.in_network_reduction import network_all_reduce_s
from planner.cost.network.topology import reduction_view
from planner.describe.catalogue import load_machine, load_model
from planner.describe.model.model import Model
from planner.describe.workload.workload import LoraTarget
from planner.units import GIB

__all__ = ["PAGE", "figures", "page"]

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "features.md"
_QWEN = "QwenLM/Qwen @03cd81f5, README.md, Profiling of Memory and Speed"
_LORA = {
    512: (20.4, 1.5),
    1024: (21.5, 2.8),
    2048: (23.8, 5.2),
    4096: (29.7, 10.1),
    8192: (36.6, 21.3),
}
_QLORA = {
    512: (11.5, 3.0),
    1024: (12.3, 3.5),
    2048: (13.9, 7.0),
    4096: (16.9, 11.6),
    8192: (23.5, 22.3),
}
"""Memory [GB] and time of an iteration [s] by tokens: Qwen-7B, one A100 of 80 GB."""

_SLOPE = "the loss that ran is not stated; by its slope it keeps two fp32 copies of the logits less"
_HOST = "the estimate is nanoGPT's DDP; the Trainer with PEFT and 4-bit kernels issues more kernels"


def figures() -> list[Figure]:
    """Compute every figure."""
    parts = (_adapters(), _stated_nvme(), _nvme(), _ulysses(), _sharp())
    return [figure for part in parts for figure in part]


def _adapters() -> Iterator[Figure]:
    """Qwen-7B with adapters of rank 64: 8 micro-batches of one sequence."""
    qwen = load_model("llama-2-7b").replaced(vocab_size=151_936, qkv_bias=True)
    for name, table in (("LoRA", _LORA), ("QLoRA", _QLORA)):
        for tokens, (size, step_s) in table.items():
            job = planner.Workload(
                sequence_length=tokens,
                global_batch=8,
                precision="bf16" if name == "LoRA" else "fp16",
                attention="flash",
                lora_rank=64,
                lora_targets=get_args(LoraTarget),
                lora_dropout=0.05,
                base_format="computed" if name == "LoRA" else "nf4",
            )
            layout = planner.Layout(grad_accumulation=8, recompute="full")
            found = planner.estimate(qwen, "dgx-a100", layout, workload=job, framework="ddp")
            low, high = (bound / GB for bound in found.interval_memory_bytes)
            memory = found.memory_bytes["total"] / GB
            what = f"{name}, {tokens:,} tokens"
            section = "LoRA and QLoRA"
            yield Figure(
                section,
                f"{what}: memory",
                "GB",
                size,
                memory,
                _QWEN,
                (low, high),
                reason=_SLOPE,
            )
            yield Figure(
                section,
                f"{what}: step",
                "s",
                step_s,
                found.step_time_s,
                _QWEN,
                found.interval_step_time_s,
                reason=_HOST,
            )


_SIZES = {"50": (62, 64), "100": (125, 64)}
"""Layers and heads of models of about so many billion parameters, 8,192 wide."""


def _gpt(layers: int, heads: int) -> Model:
    return load_model("gpt3-175b").replaced(
        num_layers=layers,
        hidden_size=8192,
        num_heads=heads,
        num_kv_heads=heads,
        ffn_size=4 * 8192,
    )


def _nvme() -> Iterator[Figure]:
    """GPT of 50 and 100 billion parameters on one DGX-2, all states on NVMe."""
    job = planner.Workload(
        sequence_length=1024, global_batch=256, precision="fp16", attention="eager"
    )
    layout = planner.Layout(
        dp=16, zero_stage=3, micro_batch=16, recompute="full", offload="all-nvme"
    )
    for name, (layers, heads) in _SIZES.items():
        found = planner.estimate(
            _gpt(layers, heads), "dgx-2", layout, workload=job, framework="deepspeed"
        )
        rate = 4 / 3 * found.mfu * 125
        yield Figure(
            "Offload to NVMe",
            f"ZeRO-3, {name} billion parameters on 16 V100, all on NVMe",
            "TFLOP/s",
            35.0,
            rate,
            "deepspeedai/DeepSpeed issue 1776 (2022-02)",
            _rates(rate, found),
        )


def _stated_nvme() -> Iterator[Figure]:
    """GPT of 10 billion parameters on two nodes of one A100-PCIe, batch 8 a GPU, one SSD each."""
    section, source = "Offload to NVMe", "deepspeedai/DeepSpeedExamples issue 192 (2022-08)"
    what = "ZeRO-3, 10 billion parameters on 2 A100, all on NVMe"
    rated, worn = (_one_ssd_each(write) for write in (3e9, 0.6e9))
    memory = rated.memory_bytes["total"] / 2**20
    low, high = (bound / 2**20 for bound in rated.interval_memory_bytes)
    yield Figure(section, f"{what}: memory", "MiB", 13395.0, memory, source, (low, high))
    rate = 4 / 3 * rated.mfu * 312
    yield Figure(
        section,
        f"{what}: rate",
        "TFLOP/s",
        1.5,
        rate,
        source,
        _rates(rate, rated),
        reason="a step writes 80 GB on each node, at the 3 GB/s that such a disk is rated at; "
        f"at 0.6 GB/s, assumed, the estimate is {rate * rated.step_time_s / worn.step_time_s:.1f}",
    )


def _one_ssd_each(write_bytes_per_s: float) -> planner.Estimate:
    """Estimate the step; two devices of a node of VSC-5 with twice the disk stand for two nodes."""
    changes = (
        "node.local_disk.read_bytes_per_s=7e9",
        f"node.local_disk.write_bytes_per_s={2 * write_bytes_per_s}",
    )
    model = load_model("gpt3-175b").replaced(
        num_layers=50,
        hidden_size=4096,
        num_heads=16,
        num_kv_heads=16,
        head_dim=256,
        ffn_size=4 * 4096,
    )
    job = planner.Workload(
        sequence_length=1024, global_batch=16, precision="fp16", attention="eager"
    )
    layout = planner.Layout(dp=2, zero_stage=3, micro_batch=8, recompute="full", offload="all-nvme")
    machine = load_machine("vsc-5", changes)
    return planner.estimate(model, machine, layout, workload=job, framework="deepspeed")


def _rates(rate: float, found: planner.Estimate) -> tuple[float, float]:
    """Interval of a rate, from that of the step."""
    fast, slow = found.interval_step_time_s
    return rate * found.step_time_s / slow, rate * found.step_time_s / fast


def _ulysses() -> Iterator[Figure]:
    """Llama 3 8B with 208 K tokens on two nodes, Ulysses inside and a ring between them."""
    tokens = 208 * 1024
    job = planner.Workload(sequence_length=tokens, global_batch=1, precision="bf16")
    layout = planner.Layout(cp=16, ulysses=8, zero_stage=1, recompute="full")
    machine = load_machine("selene", ("node.fabric.device_bytes_per_s=200e9",))
    model = load_model("llama-3-8b")
    found = planner.estimate(model, machine, layout, workload=job, framework="megatron-lm")
    dense = 6.0 * model.num_params
    scores = 12.0 * model.num_layers * model.hidden_size * tokens
    mfu = 100 * found.mfu * (dense + scores / 2) / (dense + scores)
    yield Figure(
        "Ulysses",
        "Llama 3 8B, 208 K tokens, 16 A800: MFU",
        "%",
        47.0,
        mfu,
        "arXiv:2405.07719, abstract",
        _rates(mfu, found),
    )


def _sharp() -> Iterator[Figure]:
    """All-reduce of 1 GiB over 16 nodes of Selene whose switches add as Eos' do."""
    selene, rate = load_machine("selene"), {"switch_reduction": _of_eos()}
    assert selene.network is not None
    machine = selene.replaced(network={**selene.network.model_dump(), **rate})
    group = reduction_view(whole_nodes(machine, 16))
    yield Figure(
        "SHARP",
        "all-reduce on DGX A100, 8 HDR ports a node: buffer / time",
        "GB/s",
        110.0,
        GIB / float(network_all_reduce_s(group, GIB)) / GB,
        "NVIDIA/nccl issue 320 (2023-01)",
        0.1,
    )


def _of_eos() -> dict[str, Any]:
    network = load_machine("eos", ("network=sharp",)).network
    assert network is not None
    assert network.switch_reduction is not None
    return network.switch_reduction.model_dump()


_HEAD = """# Features with little evidence

Written by `benchmarks/features.py`; do not edit. Few measured runs use these features, so
[accuracy.md](accuracy.md) has no row or few rows of them. Here is the best published figure that
was found beside the estimate. No constant was fitted on any of them.
`tests/evidence/test_cited.py` computes all rows again.

A tolerance is a relative error, or the planner's 90 % interval in the unit of the figure. Figures
were looked for in stored copies of public repositories, issues, documentation and papers, in
November 2026.
"""
_NOTES = {
    "LoRA and QLoRA": "Qwen-7B (32 layers, 4,096 wide, 151,936 tokens) on one A100 of 80 GB, batch "
    "1, 8 accumulation steps, FlashAttention 2, gradient checkpointing (its script "
    "`finetune_lora_single_gpu.sh`). Adapters of rank 64 on all matrices of a layer, with dropout "
    "(defaults of its `finetune.py`). Its QLoRA is GPTQ in 4 bits and fp16 under "
    "DeepSpeed; the estimate is nf4 under DDP. Its G is read as GB: two A100 could not hold "
    "another row's 162 G as GiB. 16 runs of LoRA on 70 billion parameters are in "
    "[accuracy.md](accuracy.md), under MLPerf.\n",
    "Offload to NVMe": "The run on 2 A100 states its batch (8 a GPU), its shape (50 layers of "
    "4,096) and its disk (a Samsung 980 of 1 TB in each of two nodes). Sequences of 1,024 tokens "
    "are assumed. A node of VSC-5 with two such disks stands for both nodes.\n\n"
    "The runs on 16 V100 do not state their batch. 16 sequences of 1,024 tokens a GPU are taken, "
    "and with 8 or 32 the estimate is 22 or 49, so that the agreement proves little. Their sizes "
    "are 62 and 125 layers of 8,192. The user could not reach the 40 and more of "
    "arXiv:2104.07857. Rates count the recomputed forward pass.\n\n"
    "DeepSpeed issue 1130 (2021) has 2.3 TFLOP/s for 10 billion parameters, with a copy that "
    "blocked and was mended later.\n",
    "Ulysses": "The planner's machine is Selene with the NVLink of an A800 (200 GB/s). Attention "
    "counts half, as a causal mask leaves it; counted in full the estimate is 77 %. Which of the "
    "two the abstract means is not stated, and recompute is assumed. Figures of "
    "arXiv:2309.14509 are plots. "
    "arXiv:2405.15780 has Ulysses on Frontier, up to 188 K tokens and 94 % efficiency on 2,048 "
    "MI250X, without step times in its abstract.\n",
    "SHARP": "Measured curves with and without SHARP were looked for in NVIDIA/nccl, "
    "NVIDIA/nccl-tests, Mellanox/nccl-rdma-sharp-plugins and osrg/optcast: only plots, and one "
    "report of a single device. A maintainer's rule is the best figure: with 8 ports NVLink limits "
    "the buffer to 110 GB/s. His 20 GB/s a port is the rate of the switches in the estimate, the "
    "limit is not. NVIDIA's blog reports 17 % "
    "more BERT steps a second (2021), without the job.\n",
    "FSDP's names": "`FULL_SHARD` is ZeRO-3, `SHARD_GRAD_OP` is ZeRO-2, `NO_SHARD` is DDP, and "
    "`HYBRID_SHARD` is ZeRO-3 inside a node with replicas across nodes. `--zero` reads the "
    "first three; the fourth is `--zero 3 --dp-shard` with the ranks of a node."
    "\n\n"
    "- `FULL_SHARD`: 107 runs of llm-foundry, 39 of torchtitan, 8 of fms-fsdp, in "
    "[accuracy.md](accuracy.md).\n"
    "- `HYBRID_SHARD`: on 4 nodes 74.4 samples/s against 55.3 with `FULL_SHARD`, 34 % more "
    "(oumi-ai/oumi pull request 213, 2024-07). The devices and the network are not stated, so no "
    "estimate stands beside it.\n"
    "- `SHARD_GRAD_OP`: 8 % more tokens a second than `FULL_SHARD` with Qwen 2.5 3B "
    "(meta-pytorch/torchtune issue 2402, 2025-02). The devices are not stated.\n"
    "- `NO_SHARD`: as DDP.\n",
    "Tiles": "No measurement of a step with and without `TiledLinear` (arXiv:2104.07857, section "
    "5.1.3) was found. Looked for in issues of DeepSpeed, DeepSpeedExamples, "
    "PatrickStar (issue 209) and in their pages. DeepSpeed's `TiledMLP` is another feature: it "
    "computes the forward pass once more, 25 % more computation (DeepSpeed pull request 7664, "
    "2025-11).\n",
}


def page() -> str:
    """Write the page."""
    found = figures()
    held = sum(figure.holds for figure in found)
    count = f"{held} of {len(found)} figures hold, {len(found) - held} are missed."
    return f"{_HEAD}\n{count}\n" + tables(found, _NOTES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
