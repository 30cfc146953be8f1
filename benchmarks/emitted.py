"""Emitted files: random legal layouts, parsed by the software that the files are for.

    python -m benchmarks.emitted --count 1000 --source "Megatron-LM=DIR" --source ...

Files are emitted for a seeded sample of models, machines, frameworks and legal layouts. The real
parsers of `benchmarks.parsers` read every folder, one process per parser. SOURCE is a checkout or
a `pip install --target` folder (several with `:`) of a parser that is not installed. Prints a
Markdown table: files emitted, accepted and refused with reasons, parsers that could not be loaded,
and values that differ from the plan.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parsers import PARSERS
from planner.choose.plan import Plan
from planner.choose.search import enumerate_layouts
from planner.cost.estimate import estimate_layouts
from planner.cost.scenario import Scenario
from planner.describe.catalogue import load_framework, load_machine, load_model, names
from planner.describe.layout import Layout
from planner.describe.workload import Workload
from planner.emitters import emit
from planner.emitters.folder import write_folder
from planner.emitters.registry import NO_FILES
from planner.errors import EmitError, PlannerError

Answers = Mapping[str, Any]

_NODES = (1, 2, 4, 8, 16, 64)
_BATCHES = (64, 96, 256, 1024)
_SEQUENCES = (1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class Case:
    """One layout and the folder of its files; without a folder if emitting was refused."""

    framework: str
    layout: Layout
    folder: str
    refusal: str


def _scenarios(chance: random.Random, only: Collection[str] = ()) -> Iterator[tuple[Scenario, int]]:
    """Yield random scenarios with node counts, without end."""
    chosen = map(load_framework, only or names("framework"))
    frameworks = [framework for framework in chosen if framework.configuration != NO_FILES]
    models = [m for m in map(load_model, names("model")) if m.convolutional is None]
    machines = [load_machine(name) for name in names("machine")]
    while True:
        framework, machine = chance.choice(frameworks), chance.choice(machines)
        nodes = chance.choice(_NODES)
        alone = machine.scheduler.kind == "none" and nodes > 1
        if framework.refuses(machine) or alone:
            continue
        if nodes > machine.num_nodes.value or machine.device.runtime == "cpu":
            continue
        workload = _workload(chance)
        built = [m for m in models if framework.code.builds(m, workload) is not None]
        model = chance.choice(built if built and chance.random() < 0.8 else models)
        longest = model.longest_sequence or workload.sequence_length
        workload = workload.replaced(sequence_length=min(longest, workload.sequence_length))
        # keep a few jobs that cannot be written, to check that they are refused
        lacks = framework.code.lacks(model, workload)
        if lacks and chance.random() < 0.9:
            continue
        part = framework if lacks else framework.limit_to_files(model, workload)
        yield Scenario(model, machine, workload, part), nodes


def _workload(chance: random.Random) -> Workload:
    return Workload(
        sequence_length=chance.choice(_SEQUENCES),
        global_batch=chance.choice(_BATCHES),
        precision=chance.choices(("bf16", "fp16", "fp32", "fp8"), (85, 7, 4, 4))[0],
        optimizer=chance.choices(("adamw", "adam", "sgd"), (90, 5, 5))[0],
    )


def cases(count: int, seed: int, root: Path, only: Collection[str] = ()) -> Iterator[Case]:
    """Yield random legal layouts, and write their files under `root`."""
    chance = random.Random(seed)
    scenarios = _scenarios(chance, only)
    done = 0
    while done < count:
        scenario, nodes = next(scenarios)
        try:
            layouts, _ = enumerate_layouts(scenario, nodes * scenario.machine.node.num_devices)
            scenario.machine.peak(scenario.workload.precision)
        except PlannerError:
            continue
        if len(layouts):
            done += 1
            yield _written(
                scenario, nodes, layouts[chance.randrange(len(layouts))], root / f"{done}"
            )


def _written(scenario: Scenario, nodes: int, layout: Layout, folder: Path) -> Case:
    from planner.cost.shards.layouts import Layouts

    with np.errstate(all="ignore"):
        estimate = estimate_layouts(scenario, Layouts.stack([layout]))[0]
    name = scenario.framework.name
    plan = Plan(
        scenario.model.name, 0, scenario.machine.name, nodes, 0, scenario.workload, 0,
        ranked=(), recommended=None, strategies=(), dropped=(), notes=(), queues=(),
    )  # fmt: skip
    try:
        files = emit(plan, estimate)
    except EmitError as error:
        return Case(name, layout, "", str(error))
    write_folder(files, folder)
    return Case(name, layout, str(folder), "")


def parse(parser: str, folders: list[str], source: str = "") -> Answers | str:
    """Run a parser on folders; return its answers, or one line if it cannot be loaded."""
    command = [sys.executable, "-m", "benchmarks.parsers", parser, *filter(None, source.split(":"))]
    done = subprocess.run(
        command, input=json.dumps(folders), capture_output=True, text=True, check=False
    )
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
    answers: Answers = json.loads(done.stdout)
    return answers


def wrong(case: Case, read: Mapping[str, Any]) -> str:
    """Name the first value that was read differently than planned; empty if all agree."""
    layout = case.layout
    wanted = {
        "global_batch": layout.global_batch,
        "micro_batch": layout.micro_batch,
        "accumulation": layout.grad_accumulation,
        "zero": layout.zero_stage,
        "recompute": layout.recompute,
        "world": layout.world,
        "compile": False,
        "loss": "CrossEntropyLoss.Config",
        "loss_chunks": load_framework(case.framework).kernels.loss_chunks,
        **{axis: getattr(layout, axis) for axis in ("tp", "pp", "vpp", "cp", "ep")},
    }
    if layout.dp * layout.cp == 1:
        wanted.pop("zero")  # nothing to shard over
    odd = (f"{k} = {read[k]}, not {v}" for k, v in wanted.items() if k in read and read[k] != v)
    return next(odd, "")


_READERS = {
    "megatron-lm": ("Megatron-LM",),
    "megatron-deepspeed": ("Megatron-DeepSpeed", "DeepSpeedConfig"),
}
"""Parsers of frameworks whose files have the same name."""


def folders_for(parser: str, found: list[Case]) -> list[str]:
    """Select the folders for a parser: they contain its file and belong to its frameworks."""
    file = PARSERS[parser][0]
    only = [name for name, parsers in _READERS.items() if parser in parsers]
    return [
        case.folder
        for case in found
        if case.folder
        and (Path(case.folder) / file).exists()
        and (file != "megatron.args" or case.framework in only)
    ]


def table(found: list[Case], sources: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the report."""
    planned = {case.folder: case for case in found if case.folder}
    yield "| parser | folders | accepted | equal to the plan | first problem |"
    yield "|---|---:|---:|---:|---|"
    for parser in PARSERS:
        folders = folders_for(parser, found)
        if not folders:
            continue
        answers = parse(parser, folders, sources.get(parser, ""))
        if isinstance(answers, str):
            yield f"| {parser} | {len(folders)} | not available | | {answers} |"
            continue
        accepted = {f: read for f, read in answers.items() if isinstance(read, dict)}
        odd = {f: what for f, read in accepted.items() if (what := wrong(planned[f], read))}
        bad = [f"{f}: {why}" for f, why in answers.items() if f not in accepted]
        bad += [f"{f}: {what}" for f, what in odd.items()]
        equal = len(accepted) - len(odd)
        yield f"| {parser} | {len(folders)} | {len(accepted)} | {equal} | {' '.join(bad[:1])} |"


def refusals(found: list[Case]) -> Iterator[str]:
    """Yield emitted and refused counts by framework, with the most common reasons."""
    by_name: dict[str, list[Case]] = defaultdict(list)
    for case in found:
        by_name[case.framework].append(case)
    yield "| framework | layouts | emitted | refused | commonest reason |"
    yield "|---|---:|---:|---:|---|"
    for name, group in sorted(by_name.items()):
        reasons = Counter(case.refusal for case in group if case.refusal)
        why = reasons.most_common(1)[0][0] if reasons else ""
        refused = sum(reasons.values())
        yield f"| {name} | {len(group)} | {len(group) - refused} | {refused} | {why} |"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--source", action="append", default=[], metavar="PARSER=DIR[:DIR]")
    options.add_argument("--framework", action="append", default=[], help="one of those drawn")
    options.add_argument("--folder", type=Path, help="where the folders stay")
    given = options.parse_args()
    sources = dict(source.split("=", 1) for source in given.source)
    with tempfile.TemporaryDirectory() as temporary:
        found = list(
            cases(given.count, given.seed, given.folder or Path(temporary), given.framework)
        )
        print("\n".join(refusals(found)), end="\n\n", flush=True)
        for line in table(found, sources):
            print(line, flush=True)


if __name__ == "__main__":
    main()
