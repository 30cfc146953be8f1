"""Round trip: files of random legal layouts, emitted and read back, must give the same job.

    python benchmarks/roundtrip.py --count 3000

Draws layouts for every framework that `planner emit` writes files for, writes the files, reads
them back without `layout.json`, and compares layout, workload and estimate. Fields that a
framework's files cannot state are passed as options; `OMITTED_FIELDS` lists the allowed ones.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner.choose.legality import check
from planner.choose.plan import Plan
from planner.choose.user_layouts import CompletedLayout, complete_layout
from planner.cost.estimate import Estimate, estimate_layouts
from planner.cost.scenario import Scenario
from planner.cost.shards.layouts import Layouts
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.configurations.configuration import Configuration, joined
from planner.describe.configurations.reading import read_configuration_text
from planner.describe.framework.framework import Framework
from planner.describe.layout import Layout, divisors, format_split
from planner.describe.workload import Workload
from planner.emitters import emit
from planner.errors import EmitError, LayoutError

__all__ = ["FRAMEWORKS", "OMITTED_FIELDS", "Case", "Emitted", "differences", "emitted"]

MODELS = ("gpt2", "gpt2-xl", "llama-3-8b", "llama-3.1-405b", "mistral-7b", "qwen3-30b-a3b")
MACHINES = ("polaris", "dgx-h100", "vsc-5", "workstation-4x4090")
NO_CONFIGURATION = ("README.md", "layout.json", "data.args", "torchtitan_model.py")
"""Emitted files, in addition to scripts, that are not configuration files of the framework."""
_ALWAYS = {"tiles", "attention", "optimizer", "lora_rank", "lora_targets", "frozen", "tokens"}
_ALWAYS |= {"expert_imbalance", "expert_capacity", "pad_experts"}
_ALWAYS |= {"lora_dropout", "dora", "base_format"}
_ALWAYS |= {"ramp", "samples", "epochs", "document_lengths", "packing"}
_PROGRAM = {"recompute", "sequence_length", "dropout"}
"""Fields that a user's own program sets."""
OMITTED_FIELDS = {
    "accelerate": _ALWAYS | _PROGRAM | {"micro_batch", "grad_accumulation", "global_batch"},
    "ddp": _ALWAYS | {"recompute", "offload"},
    "deepspeed": _ALWAYS | _PROGRAM,
    "ezpz": _ALWAYS | {"recompute", "offload"},
    "fsdp2": _ALWAYS | _PROGRAM | {"etp"},
    "horovod": _ALWAYS | _PROGRAM,
    "megatron-deepep": _ALWAYS,
    "megatron-deepspeed": _ALWAYS,
    "megatron-lm": _ALWAYS,
    "nanotron": _ALWAYS | {"offload", "dropout"},
    "torchtitan": _ALWAYS | _PROGRAM | {"etp"},
}
"""Fields that a framework's files may omit, in addition to fields with their default."""
FRAMEWORKS = tuple(name for name in names("framework") if name in OMITTED_FIELDS)


@dataclass(frozen=True, slots=True)
class Case:
    """One random job."""

    scenario: Scenario
    layout: Layout
    nodes: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """A job with its estimate and its emitted configuration files."""

    case: Case
    estimate: Estimate
    files: dict[str, str]


def emitted(framework: str, random_numbers: random.Random, count: int) -> Iterator[Emitted]:
    """Yield `count` random legal jobs of a framework whose files can be written."""
    tried = 0
    while count:
        tried += 1
        assert tried < 100_000, f"no layout of {framework} can be written"
        try:
            found = _written(_drawn(framework, random_numbers))
        except (LayoutError, EmitError):
            continue
        if found is not None:
            count -= 1
            yield found


def _drawn(name: str, draw: random.Random) -> Case:
    model, machine = load_model(draw.choice(MODELS)), load_machine(draw.choice(MACHINES))
    framework = load_framework(name)
    nodes = draw.choice([1, 2, 4, 8, 16])
    if nodes > machine.num_nodes.value:
        raise LayoutError("the machine is smaller; draw again")
    world = nodes * machine.node.num_devices
    degrees = {}
    rest = world
    for axis in ("tp", "pp", "cp"):
        usable = axis in framework.axes and draw.random() < 0.4
        degrees[axis] = draw.choice(divisors(rest)) if usable else 1
        rest //= degrees[axis]
    vpp = draw.choice([1, 1, 2, 4]) if degrees["pp"] > 1 else 1
    schedule = "none"
    if degrees["pp"] > 1:
        schedule = "interleaved-1f1b" if vpp > 1 else draw.choice(framework.schedules)
    split_fields: dict[str, Any] = {}
    if framework.custom_pipeline_split:
        split_fields = _pipeline_split(draw, model.num_layers, degrees["pp"], vpp)
        # if the framework always counts the ends as layers, no file shows that a user set it
        if framework.balance == "ends-as-layers" and "split" not in split_fields:
            split_fields = {}
    split = framework.sequence_parallel
    layout = Layout(
        dp=rest,
        dp_shard=draw.choice(divisors(rest)) if draw.random() < 0.3 else 0,
        **_experts(draw, rest, degrees["tp"], spread=bool(model.experts)),
        **degrees,
        vpp=vpp,
        schedule=schedule,
        sequence_parallel=degrees["tp"] > 1
        and (split == "by-default" or (split == "optional" and draw.random() < 0.5)),
        zero_stage=draw.choice(framework.zero_stages),
        micro_batch=draw.choice([1, 2, 3, 4, 8]),
        grad_accumulation=draw.choice([1, 2, 3, 8, 16]),
        **_recompute(draw, framework),
        offload=draw.choice(["none", "none", "optimizer-cpu", "all-cpu", "all-nvme"]),
        **split_fields,
    )
    workload = Workload(
        sequence_length=draw.choice([512, 1024]),
        global_batch=layout.global_batch,
        precision=draw.choice(["bf16", "bf16", "bf16", "fp16", "fp32"]),
    )
    return Case(Scenario(model, machine, workload, framework), layout, nodes)


def _experts(draw: random.Random, rest: int, tp: int, *, spread: bool) -> dict[str, int]:
    """Draw expert parallelism over the replicas and the tensor-parallel ranks."""
    if not spread or draw.random() >= 0.5:
        return {}
    ep = draw.choice(divisors(rest * tp))
    return {"ep": ep, "etp": draw.choice([0, 1]) if tp > 1 else 0}


def _recompute(draw: random.Random, framework: Framework) -> dict[str, Any]:
    """Draw the recompute mode and its details, and whether activations are offloaded."""
    mode = draw.choice(framework.recompute)
    found: dict[str, Any] = {"recompute": mode}
    code_methods = framework.code.recompute_by
    methods = framework.recompute_by if code_methods is None else code_methods
    if mode == "full" and methods and draw.random() < 0.5:
        found[f"recompute_{draw.choice(methods)}"] = draw.choice([2, 4])
    if mode == "selective" and framework.recompute_modules and draw.random() < 0.5:
        found["recompute_modules"] = draw.sample(framework.recompute_modules, 2)
    moved = mode in framework.offload_activations and draw.random() < 0.5
    return {**found, "offload_activations": moved}


def _pipeline_split(draw: random.Random, layers: int, pp: int, vpp: int) -> dict[str, Any]:
    """Draw a pipeline split: none, embedding and head as layers, or unusual layers by chunk."""
    if pp == 1 or draw.random() < 0.5:
        return {}
    if draw.random() < 0.5 or layers < 4 * pp * vpp:
        return {"embedding_slots": 1, "head_slots": 1}
    counts = [layers // (pp * vpp)] * (pp * vpp)
    counts[-1] += layers % (pp * vpp) + 2
    counts[0] -= 2
    return {"split": format_split(counts)}


def _written(case: Case) -> Emitted | None:
    """Emit the files of a job; None if the framework has no configuration files for it."""
    scenario = case.scenario
    scenario.machine.peak(scenario.workload.base_precision)
    check(scenario, case.layout)
    estimate = estimate_layouts(scenario, Layouts.stack([case.layout]))[0]
    plan = Plan(
        scenario.model.name, 0, scenario.machine.name, case.nodes, 0, scenario.workload, 0,
        ranked=(), recommended=None, strategies=(), dropped=(), notes=(), queues=(),
    )  # fmt: skip
    files = {
        name: text
        for name, text in emit(plan, estimate).items()
        if name not in NO_CONFIGURATION and not name.endswith(".sh")
    }
    shards = case.layout.world > 1 or scenario.framework.name != "accelerate"
    return Emitted(case, estimate, files) if files and shards else None


def differences(job: Emitted) -> list[str]:
    """List the differences between a job and its files read back; empty if they agree."""
    case, scenario = job.case, job.case.scenario
    read = joined([read_configuration_text(text, name) for name, text in job.files.items()])
    back, omitted = _completed(case, read)
    usual = Layout()
    surprising = [
        field
        for field in omitted - OMITTED_FIELDS[scenario.framework.name]
        if getattr(case.layout, field, None) != getattr(usual, field, 1)
    ]
    found = [f"{field} is not in the files" for field in surprising]
    for field, value in _plain(case.layout).model_dump().items():
        other = getattr(_plain(back.layout), field)
        if value != other:
            found.append(f"{field} = {value} was read as {other}")
    for field, value in _normalized_workload(case, scenario.workload).items():
        other = _normalized_workload(case, back.workload)[field]
        if value != other:
            found.append(f"{field} = {value} was read as {other}")
    if back.framework is None or not _same_estimate(job, back.framework):
        found.append(f"framework {scenario.framework.name} changed: {'; '.join(back.notes)}")
    return found


def _same_estimate(job: Emitted, framework: Framework) -> bool:
    """True if a framework is the job's own or gives the same estimate: files without expert
    parallelism do not state how tokens would be exchanged."""
    scenario = job.case.scenario
    if framework == scenario.framework:
        return True
    other = estimate_layouts(
        replace(scenario, framework=framework), Layouts.stack([job.case.layout])
    )[0]
    return (other.step_time_parts_s, other.memory_bytes, other.host_memory_bytes) == (
        job.estimate.step_time_parts_s,
        job.estimate.memory_bytes,
        job.estimate.host_memory_bytes,
    )


def _completed(case: Case, read: Configuration) -> tuple[CompletedLayout, set[str]]:
    """Complete the files with the fields that they omit; return the job and the field names."""
    scenario = case.scenario
    layout, workload = case.layout.model_dump(), scenario.workload.model_dump()
    stated = {*read.layout, *read.workload, *read.usual}
    stated |= {"dp_shard", "dp", "world"}  # follow from the nodes and the number of replicas
    sizes = {"micro_batch", "grad_accumulation", "global_batch"} & stated
    stated |= {"micro_batch", "grad_accumulation", "global_batch"} if len(sizes) > 1 else set()
    options = [{k: v for k, v in part.items() if k not in stated} for part in (layout, workload)]
    back = complete_layout(
        scenario.model,
        scenario.machine,
        read,
        nodes=case.nodes,
        layout=options[0],
        workload=options[1],
    )
    return back, set(options[0]) | set(options[1])


def _plain(layout: Layout) -> Layout:
    """Normalize the layout: a shard group of all ranks is not hybrid sharding, and a group of one
    rank, which files cannot distinguish from replicas, shards nothing."""
    group = (layout.dp_shard or layout.dp) if layout.zero_stage else 1
    stage = layout.zero_stage
    if group == 1 and layout.cp > 1:
        stage = max(stage, 2)
    elif group == 1 and (stage < 3 or layout.dp > 1):
        stage = 0
    whole = group in (1, layout.dp)
    return layout.replaced(zero_stage=stage, dp_shard=0 if whole else group)


def _normalized_workload(case: Case, workload: Workload) -> dict[str, object]:
    """Normalize the workload: it takes the model's dropout if it states none."""
    fields = workload.model_dump()
    if fields["dropout"] is None:
        fields["dropout"] = case.scenario.model.dropout
    return fields


def main() -> int:
    """Print how many layouts of each framework came back the same; return 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=3000, help="layouts, over all frameworks")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failures = 0
    for name in FRAMEWORKS:
        draw, same = random.Random(f"{given.seed} {name}"), 0
        kinds: Counter[str] = Counter()
        for job in emitted(name, draw, given.count // len(FRAMEWORKS)):
            found = differences(job)
            same += not found
            kinds.update(found)
        failures += len(kinds)
        print(f"{name:20} {same} of {given.count // len(FRAMEWORKS)} came back the same")
        for what, times in kinds.most_common(12):
            print(f"  {times:5} {what[:200]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
