"""Cited figures: what papers, notes and logs behind the planner state, beside its own figures.

    python benchmarks/cited.py        # writes docs/reference/cited.md

Every row has the stated figure with its source, the planner's figure, and a tolerance: a relative
error, or the planner's own 90 % interval. A row outside its tolerance is marked, with the reason as
far as it is known. `tests/evidence/test_cited.py` computes every row again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from whole.scaling import RECORDS, Record
from whole.trainings import wordplay

import planner
from planner.cost.network.collective_table import ALGORITHMS, whole_nodes
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_machine, load_model
from planner.describe.model.model import Model
from planner.training.resilience.start import start_up
from planner.training.steps import forward_s
from planner.units import GIB

__all__ = ["GB", "PAGE", "Figure", "figures", "page", "tables"]

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cited.md"
DAY_S, GB = 86_400.0, 1e9
_NARAYANAN = "arXiv:2104.04473, table 2"
_ZERO = "arXiv:1910.02054, figure 1"
_WORDPLAY = "log of saforem2/wordplay, 2024-07-17"


@dataclass(frozen=True, slots=True)
class Figure:
    """A stated figure, and the planner's."""

    section: str
    what: str
    unit: str
    stated: float
    planner: float
    source: str
    within: float | tuple[float, float]
    """Relative tolerance, or the planner's interval in the figure's unit."""
    fitted: bool = False
    """True if a constant was fitted on this row."""
    reason: str = "not known"
    """Why the figure is outside its tolerance; printed only then."""

    @property
    def holds(self) -> bool:
        """True if the stated figure lies within the tolerance."""
        if isinstance(self.within, tuple):
            return self.within[0] <= self.stated <= self.within[1]
        return abs(self.planner / self.stated - 1) <= self.within

    def line(self) -> str:
        """Return the row of the table."""
        if isinstance(self.within, tuple):
            tolerance = f"{_plain(self.within[0])} to {_plain(self.within[1])}"
        else:
            tolerance = f"{self.within:.0%}".replace("%", " %")
        verdict = "holds" if self.holds else f"**missed**: {self.reason}"
        if self.fitted:
            verdict += "; a fit has seen it"
        error = f"{self.planner / self.stated - 1:+.1%}".replace("%", " %")
        cells = (self.what, self.unit, _plain(self.stated), _plain(self.planner), error, tolerance)
        return f"| {' | '.join((*cells, verdict, self.source))} |"


def figures() -> list[Figure]:
    """Compute every figure."""
    parts = (_zero(), _mistral(), _wordplay(), _narayanan(), _records(), _alike(), _sharp())
    return [figure for part in parts for figure in part]


# --- memory ---------------------------------------------------------------------------------------


def _zero() -> Iterator[Figure]:
    """States of 7.5 billion parameters on 64 ranks, at the optimizer step."""
    section = "ZeRO: states of 7.5 billion parameters on 64 ranks"
    job = planner.Workload(sequence_length=8, global_batch=64, precision="fp16")
    model = load_model("ptdp-7.5b")
    for stage, stated in enumerate((120.0, 31.4, 16.6, 1.9)):
        layout = planner.Layout(dp=64, zero_stage=stage)
        found = planner.estimate(model, "dgx-2", layout, workload=job, framework="deepspeed")
        parts = found.memory_bytes
        states = parts["weights"] + parts["gradients"] + parts["optimizer_states"]
        yield Figure(
            section,
            f"stage {stage}" if stage else "no sharding",
            "GB",
            stated,
            states * 7.5e9 / model.num_params / GB,
            _ZERO,
            0.05,
        )


def _mistral() -> Iterator[Figure]:
    """Mistral 7B in fp32 on a node of VSC-5, two ranks."""
    section = "Mistral 7B in fp32 on a node of VSC-5"
    source = "notes of a course on VSC-5: 28 GB on a GPU, 56 GB of the host"
    job = planner.Workload(sequence_length=4096, global_batch=2, precision="fp32")
    layout = planner.Layout(dp=2)
    ddp = planner.estimate("mistral-7b", "vsc-5", layout, workload=job, framework="ddp")
    fsdp = planner.estimate("mistral-7b", "vsc-5", layout, workload=job, framework="accelerate")
    reason = "the notes count one copy; the framework stands for FSDP2, which keeps its own shard "
    reason += "beside gathered parameters, and without sharding both are whole; no rank was traced"
    weights, host = "weights", "checkpoint_load"
    yield Figure(section, "weights, DDP", "GB", 28, ddp.memory_bytes[weights] / GB, source, 0.05)
    yield Figure(
        section,
        "weights, Accelerate",
        "GB",
        28,
        fsdp.memory_bytes[weights] / GB,
        source,
        0.05,
        reason=reason,
    )
    yield Figure(
        section,
        "host, two ranks load",
        "GB",
        56,
        ddp.host_memory_bytes[host] / GB,
        source,
        0.05,
    )


# --- a run ----------------------------------------------------------------------------------------


def _wordplay() -> Iterator[Figure]:
    """wordplay on a node of Polaris: step, rate, 100 steps, start."""
    section = "wordplay (85 M parameters) on a node of Polaris"
    job = planner.Workload(sequence_length=1024, global_batch=256, precision="fp16")
    layout = planner.Layout(dp=4, micro_batch=64)
    found = planner.estimate("wordplay-85m-char", "polaris", layout, workload=job, framework="ddp")
    low, high = found.interval_step_time_s
    tokens = found.tokens_per_s * found.step_time_s
    yield Figure(section, "a step", "ms", 285, 1e3 * found.step_time_s, _WORDPLAY, 0.1)
    yield Figure(
        section,
        "tokens",
        "1/s",
        918e3,
        found.tokens_per_s,
        _WORDPLAY,
        (tokens / high, tokens / low),
    )
    yield Figure(section, "MFU", "%", 45.8, 100 * found.mfu, _WORDPLAY, 0.1)
    hundred = wordplay()
    taken = sum(hundred.part_s(name) for name in ("steps", "evaluation", "checkpoints"))
    yield Figure(
        section,
        "100 steps with evaluation, text, checkpoint",
        "s",
        69,
        taken,
        _WORDPLAY,
        0.1,
    )
    scenario = Scenario(
        load_model("wordplay-85m-char"), load_machine("polaris"), job, planner.load_framework("ddp")
    )
    parts = start_up(scenario, Layouts.of(layout))
    clocked = sum(float(part_s) for name, part_s in parts.items() if name != "imports")
    yield Figure(
        section,
        "start, without imports",
        "s",
        6.71,
        clocked,
        f"{_WORDPLAY}: its clock starts after the imports",
        (clocked / 2, 2 * clocked),
    )


# --- tables of papers -----------------------------------------------------------------------------

_SIZES = {174.6: (96, 12288, 96), 529.6: (105, 20480, 128)}
_DAYS = (
    # billions, ZeRO-3 or PTD-P, devices, micro-batch, batch, days
    (174.6, "ZeRO-3", 384, 4, 1536, 90),
    (174.6, "ZeRO-3", 768, 2, 1536, 74),
    (174.6, "ZeRO-3", 1536, 1, 1536, 74),
    (529.6, "ZeRO-3", 640, 4, 2560, 169),
    (529.6, "ZeRO-3", 1120, 2, 2240, 137),
    (529.6, "ZeRO-3", 2240, 1, 2240, 140),
    (174.6, "PTD-P", 384, 1, 1536, 84),
    (174.6, "PTD-P", 768, 1, 1536, 43),
    (174.6, "PTD-P", 1536, 1, 1536, 23),
    (529.6, "PTD-P", 560, 1, 2240, 156),
    (529.6, "PTD-P", 1120, 1, 2240, 80),
    (529.6, "PTD-P", 2240, 1, 2240, 42),
)
"""Narayanan et al. 2021, table 2: days for 300 billion tokens on Selene."""


def _gpt(layers: int, hidden: int, heads: int) -> Model:
    return load_model("gpt3-175b").replaced(
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=hidden // heads,
        ffn_size=4 * hidden,
        vocab_size=51200,
    )


def _narayanan() -> Iterator[Figure]:
    """Days for 300 billion tokens."""
    section = "ZeRO-3 and PTD-P: days for 300 billion tokens on Selene"
    for billions, way, devices, micro_batch, batch, days in _DAYS:
        pp = 1 if way == "ZeRO-3" else {174.6: 12, 529.6: 35}[billions]
        tp = 1 if way == "ZeRO-3" else 8
        dp = devices // tp // pp
        layout = planner.Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            zero_stage=3 if way == "ZeRO-3" else 0,
            micro_batch=micro_batch,
            grad_accumulation=batch // dp // micro_batch,
            recompute="full",
            schedule="1f1b" if pp > 1 else "none",
        )
        job = planner.Workload(
            sequence_length=2048,
            global_batch=batch,
            precision="fp16",
            attention="eager",
            tokens=300e9,
        )
        found = planner.estimate(
            _gpt(*_SIZES[billions]),
            "selene",
            layout,
            workload=job,
            framework="deepspeed-2021" if way == "ZeRO-3" else "megatron-lm-2021",
        )
        per_step = 300e9 / job.tokens_per_step / DAY_S
        yield Figure(
            section,
            f"{way}, {billions} B, {devices:,} A100",
            "days",
            days,
            per_step * found.step_time_s,
            _NARAYANAN,
            _scaled(found.interval_step_time_s, per_step),
            fitted=way == "ZeRO-3" and billions == 174.6,
        )


_REASONS = {
    "Mikami": "its batch grows during training, its program is Neural Network Libraries, and the "
    "profile's rate is that of another V100 machine; no rate of one node is stated",
    "Yamazaki": "the planner's DDP transposes images around every convolution; with "
    "`ddp+channels-last` the epoch takes {channels:.2f} s. Which layout their MXNet used is not "
    "stated in the abstract",
}


def _records() -> Iterator[Figure]:
    """ResNet-50's records: all steps at the stated batch, and the evaluations of ChainerMN."""
    section = "ResNet-50 on ImageNet: records"
    for record in RECORDS:
        found = record.estimate()
        taken = record.steps + record.evaluations * forward_s(found.step_time_parts_s) / (
            found.step_time_s
        )
        unit, scale = _unit(record.seconds)
        reason = _REASONS.get(record.authors, "not known")
        if "{channels" in reason:
            reason = reason.format(channels=_channels_last_s(record))
        yield Figure(
            section,
            f"{record.authors}, {record.devices:,} devices, batch {record.batch:,}, "
            f"{record.epochs} epochs".replace(" 1 epochs", " 1 epoch"),
            unit,
            record.seconds / scale,
            taken * found.step_time_s / scale,
            record.source,
            _scaled(found.interval_step_time_s, taken / scale),
            reason=reason,
        )


def _channels_last_s(record: Record) -> float:
    found = record.estimate("ddp+bf16-reduction+channels-last")
    return record.steps * found.step_time_s


def _unit(seconds: float) -> tuple[str, float]:
    for name, size_s in (("h", 3600.0), ("min", 60.0)):
        if seconds > 3 * size_s:
            return name, size_s
    return "s", 1.0


# --- communication --------------------------------------------------------------------------------


def _alike() -> Iterator[Figure]:
    """Step of BERT-Large on 64 nodes of Polaris: three frameworks of data parallelism."""
    section = "Data parallelism of three frameworks: alike"
    job = planner.Workload(sequence_length=512, global_batch=256 * 32, precision="bf16")
    layout = planner.Layout(dp=256, micro_batch=32)
    ddp, *others = (
        planner.estimate("bert-large", "polaris", layout, workload=job, framework=name).step_time_s
        for name in ("ddp", "horovod", "deepspeed")
    )
    for name, step_s in zip(("Horovod", "DeepSpeed"), others, strict=True):
        yield Figure(
            section,
            f"{name} / DDP, BERT-Large, 256 A100, micro-batch 32",
            "step",
            1.0,
            step_s / ddp,
            "course notes: comparable scaling of the three",
            0.1,
        )


def _sharp() -> Iterator[Figure]:
    """All-reduce of 1 GiB over 16 nodes of Eos, with and without SHARP."""
    plain, sharp = load_machine("eos"), load_machine("eos", ("network=sharp",))
    ring = ALGORITHMS["all_reduce"]["ring, Simple"](whole_nodes(plain, 16), GIB)
    switches = ALGORITHMS["all_reduce"]["network (SHARP)"](whole_nodes(sharp, 16), GIB)
    yield Figure(
        "SHARP halves what an all-reduce sends",
        "ring / SHARP, 128 H100 of Eos, 1 GiB",
        "time",
        2.0,
        float(ring) / float(switches),
        "course notes: half the traffic",
        0.1,
        reason="half the bytes leave a node, but switches add at 0.83 of a link's rate (a "
        "maintainer in NVIDIA/nccl issue 320, for HDR), and sums inside the nodes stay",
    )


def _scaled(interval: tuple[float, float], factor: float) -> tuple[float, float]:
    return interval[0] * factor, interval[1] * factor


_HEAD = """# Cited figures

Written by `benchmarks/cited.py`; do not edit. The papers, course notes and logs behind the planner
state these figures. Each stands beside the planner's own, and holds or is missed.

A tolerance is a relative error, or the planner's 90 % interval in the unit of the figure. A missed
figure has its reason, as far as it is known. `tests/evidence/test_cited.py` computes all of them
again. [published.md](published.md) has longer tables of the same papers,
[accuracy.md](accuracy.md) the runs of all sources.

"""
_COLUMNS = "| what | unit | stated | planner | error | tolerance | verdict | source |"
_NOTES = {
    "ZeRO: states of 7.5 billion parameters on 64 ranks": "Weights, gradients and optimizer "
    "states under DeepSpeed in fp16 with Adam, scaled to 7.5 billion parameters. Sequences are "
    "short, so that the peak is where all of them are alive.\n\n"
    "    planner estimate ptdp-7.5b -m dgx-2 -f deepspeed --dp 64 --zero 1 --precision fp16 "
    "--seq-length 8",
    "Mistral 7B in fp32 on a node of VSC-5": "    planner estimate mistral-7b -m vsc-5 -f ddp "
    "--dp 2 --precision fp32",
    "wordplay (85 M parameters) on a node of Polaris": "No constant was touched for it but the "
    "time in which a model is built.\n\n    planner estimate wordplay-85m-char -m polaris -f ddp "
    "--dp 4 --micro-batch 64 --precision fp16 --seq-length 1024",
    "ResNet-50 on ImageNet: records": "All steps at the stated batch, as PyTorch's DDP takes "
    "them; Akiba's with the reductions of ChainerMN and its evaluation after every epoch. Reading "
    "and decoding images is not counted: on 8 P100 it cost TensorFlow 5 % (1,410 against 1,485 "
    "images/s, tensorflow @5984ffef, docs_src/performance/benchmarks.md). The rate of the P100 is "
    "fitted on TensorFlow's ResNet-50 v1 alone. "
    "[large_batches.md](../explanation/large_batches.md) says more.\n\n    planner estimate "
    "resnet-50 -m big-basin -n 32 -f ddp --dp 256 --micro-batch 32 --precision fp32",
    "SHARP halves what an all-reduce sends": "    planner collectives eos -n 16 --size 1GiB "
    "--network sharp",
}


def page() -> str:
    """Write the page."""
    found = figures()
    held, fitted = sum(f.holds for f in found), sum(f.fitted for f in found)
    count = f"{held} of {len(found)} figures hold, {len(found) - held} are missed; a fit has seen "
    return f"{_HEAD}{count}{fitted}.\n" + tables(found, _NOTES)


def tables(found: list[Figure], notes: Mapping[str, str]) -> str:
    """Write a section with a table for every section of the figures; notes stand above tables."""
    parts = []
    for section in dict.fromkeys([*(figure.section for figure in found), *notes]):
        rows = [figure.line() for figure in found if figure.section == section]
        note = f"{notes[section].rstrip()}\n" if section in notes else ""
        rule = "|---|---|---:|---:|---:|---|---|---|"
        table = "\n".join([_COLUMNS, rule, *rows]) + "\n" if rows else ""
        parts.append(f"\n## {section}\n\n" + "\n".join(part for part in (note, table) if part))
    return "".join(parts)


def _plain(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
