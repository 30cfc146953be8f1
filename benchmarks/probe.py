"""Probe: predict runs on this machine's cores before and after a few small shards were measured.

    python -m benchmarks.probe            # 5 to 10 minutes; writes docs/reference/probe.md

Ranks are processes with gloo. `planner calibrate` measures kernels and links. The small shards are
the candidates that remove most of the variance of the rows' errors for the time of a run in
`planner emit --probe`, by the hierarchy that `--measured` reads runs with. Rows and shards are
estimated by the planner's cost model alone.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from planner.choose.jobs.probe import START_S, STEPS
from planner.cost.scenario.experience import Experience, variance_removed
from planner.cost.scenario.prior import Traits, priors
from planner.cost.shards.layouts import Layouts
from planner.cost.uncertainty import traits_of
from planner.describe.catalogue import load_machine
from planner.describe.layout import Layout
from planner.describe.machine import Machine
from planner.errors import PlannerError
from planner.evidence.backtest import Backtest, score
from planner.evidence.learning import Learned, learn
from planner.evidence.runs.run import Run
from planner.evidence.scores import Score
from planner.validate.measure.collective_times import slowest
from planner.validate.measure.node_calibration import calibrate
from planner.validate.measure.quiet import Load, Watch, repeat
from planner.validate.ranks.launch import launch
from planner.validate.ranks.rank import Rank, gather_objects, joined, num_cores
from planner.validate.sharding.models import Stage
from planner.validate.sharding.shard import _recompute
from planner.validate.train.case import _Case
from planner.validate.train.expected import scenario_of
from planner.validate.train.strategies import spread_of
from planner.validate.train.tasks import SMALL_GPT, Task, fields_of, fit_task
from planner.validate.train.trainer import Trainer

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "probe.md"
_WARMUP, _BATCH, _PAUSE_S = 3, 8, 4.0
_MOST_FOREIGN, _LEAST_SHARE = 0.3, 0.9
"""Cores that others may use, and share of a core that a rank must get, for a time to count."""

# strategy, ranks, width, layers, sequence, recompute
Shape = tuple[str, int, int, int, int, str]
ROWS: tuple[Shape, ...] = (
    ("single", 1, 256, 4, 256, "none"),
    ("single", 1, 256, 8, 128, "full"),
    ("single", 1, 384, 4, 256, "none"),
    ("single", 1, 512, 6, 128, "none"),
    ("ddp", 2, 256, 4, 256, "none"),
    ("ddp", 2, 384, 6, 128, "none"),
    ("ddp", 2, 512, 4, 256, "full"),
    ("ddp", 2, 256, 8, 512, "none"),
    ("zero1", 2, 256, 6, 256, "none"),
    ("zero1", 2, 512, 4, 128, "none"),
    ("zero2", 2, 256, 4, 512, "none"),
    ("zero2", 2, 384, 6, 256, "full"),
    ("zero3", 2, 256, 8, 256, "none"),
    ("zero3", 2, 512, 4, 128, "none"),
    ("zero3", 2, 384, 4, 256, "full"),
    ("tp", 2, 256, 4, 256, "none"),
    ("tp", 2, 512, 4, 128, "none"),
    ("sp", 2, 256, 6, 128, "none"),
    ("sp", 2, 384, 4, 256, "none"),
    ("gpipe", 2, 256, 4, 256, "none"),
    ("gpipe", 2, 512, 4, 128, "full"),
    ("1f1b", 2, 256, 8, 128, "none"),
    ("1f1b", 2, 384, 4, 256, "none"),
    ("interleaved", 2, 256, 8, 256, "none"),
    ("ddp", 4, 256, 4, 256, "none"),
    ("ddp", 4, 512, 4, 128, "none"),
    ("zero1", 4, 384, 4, 128, "none"),
    ("zero2", 4, 256, 6, 256, "none"),
    ("zero3", 4, 256, 4, 256, "none"),
    ("zero3", 4, 384, 4, 128, "full"),
    ("tp", 4, 256, 4, 256, "none"),
    ("sp", 4, 384, 4, 128, "none"),
    ("gpipe", 4, 256, 4, 256, "none"),
    ("1f1b", 4, 384, 8, 128, "none"),
)
"""Runs that no probe has seen."""
CANDIDATES: tuple[Shape, ...] = tuple(
    (strategy, world, width, depth, sequence, "none")
    for strategy, world in (
        ("single", 1),
        ("ddp", 2),
        ("zero2", 2),
        ("zero3", 2),
        ("tp", 2),
        ("gpipe", 2),
        ("1f1b", 2),
    )
    for width in (256, 384)
    for depth, sequence in ((2, 128), (2, 256))
)
"""Small shards: widths of the rows, half of their least depth, half of the most ranks. Narrower
ones fit the caches, and say little of the rows."""


# --- ranks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recomputed(Task):
    """A model whose layers are recomputed in backward."""

    def module(self, layers: range) -> Stage:
        """Build consecutive layers, each in a checkpoint."""
        stage = Task.module(self, layers)
        _recompute(stage, Layout(recompute="full"))
        return stage


class _Row(_Case):
    """One shape on all ranks: its peak and the time of its steps."""

    def measure(self, patience: int) -> dict[str, Any]:
        """Measure until the cores are otherwise idle, or `patience` attempts are over."""
        if self.case["recompute"] != "none":
            self.task = Recomputed(self.task.model, self.task.batch, self.task.sequence)
        self._say("building")
        trainer = Trainer(self.task, self.spread, self.rank)
        for step in range(_WARMUP):
            trainer.step(step)
        peaks = self._peaks(trainer)
        timed: dict[str, Any] = {}
        for attempt in range(patience):
            timed = self._time(trainer)
            if not timed["busy"]:
                break
            self._say(f"others use the cores, attempt {attempt + 1} of {patience}")
            time.sleep(_PAUSE_S if attempt + 1 < patience else 0)
        case = {name: self.case[name] for name in ("strategy", "recompute")}
        case["task"] = fields_of(self.task)
        shape = {"spread": asdict(self.spread), "device": "cpu", "world": self.rank.world}
        return {**case, **shape, **timed, "peak_bytes_per_rank": peaks}

    def _time(self, trainer: Trainer) -> dict[str, Any]:
        self._say("timing")
        watch = Watch()
        start, own = time.perf_counter(), time.process_time()
        # a single rank waits for nobody: its processor time is its step, whatever else runs
        clock = time.process_time if self.rank.world == 1 else time.perf_counter
        seconds = partial(self.rank.seconds, clock=clock)
        steps = repeat(lambda: slowest([seconds(partial(trainer.step, i)) for i in range(4)]))
        wall, cpu = time.perf_counter() - start, time.process_time() - own
        everyone = gather_objects((watch.report(), cpu / wall))
        load = gather_objects(watch.load([report for report, _ in everyone]))[0]
        return {
            "step_time_s": steps.time_s,
            "scatter": steps.scatter,
            "cpu_wall": sum(share for _, share in everyone) / len(everyone),
            "foreign_cores": load.foreign_cores,
            "busy": _is_busy(load),
        }


def _is_busy(load: Load) -> bool:
    crowded = load.num_ranks > load.num_cores
    if load.num_ranks == 1:
        return False
    shared = not crowded and load.cpu_wall < _LEAST_SHARE
    return shared or (load.foreign_cores or 0.0) > _MOST_FOREIGN


def measure_cases(
    rank: Rank, payload: dict[str, Any], send: Callable[[Any], None]
) -> list[dict[str, Any]]:
    """Measure all cases of one number of ranks in one process group."""
    rank.report("joining the process group")
    with joined(rank):
        return [_Row(rank, case).measure(payload["patience"]) for case in payload["cases"]]


def _case(shape: Shape) -> dict[str, Any]:
    strategy, world, width, depth, sequence, recompute = shape
    model = SMALL_GPT.replaced(
        num_layers=depth,
        hidden_size=width,
        head_dim=width // SMALL_GPT.num_heads,
        ffn_size=4 * width,
        num_position_rows=sequence,
        max_sequence_length=sequence,
    )
    fitted = fit_task(Task(model, _BATCH, sequence), spread_of(strategy, world))
    return {"task": fields_of(fitted), "strategy": strategy, "recompute": recompute}


def measure(shapes: Sequence[Shape], patience: int) -> list[dict[str, Any]]:
    """Measure shapes, those of equal ranks in one process group, in their order."""
    results: dict[Shape, dict[str, Any]] = {}
    for world in sorted({shape[1] for shape in shapes}):
        members = [shape for shape in shapes if shape[1] == world]
        payload = {"cases": [_case(shape) for shape in members], "patience": patience}
        answers = launch(
            "benchmarks.probe:measure_cases", world, payload, limit_s=300, progress=_progress
        )
        results |= dict(zip(members, answers[0], strict=True))
    return [results[shape] for shape in shapes]


def _progress(rank: int, text: str) -> None:
    if not rank:
        print(text, flush=True)


# --- estimates ------------------------------------------------------------------------------------


def machine_for(world: int, machine: Machine) -> Machine:
    """Return the machine for a number of ranks: more ranks than cores are parts of a core each."""
    cores = machine.node.num_devices
    if world <= cores:
        return machine
    part, fields = cores / world, machine.model_dump()
    device, node = fields["device"], fields["node"]
    rates = [*device["peak_flop_per_s"].values(), device["memory_bytes_per_s"]]
    rates += [device["memory_bytes"], node["fabric"]["device_bytes_per_s"]]
    for rate in rates:
        rate["value"] *= part
    for delay in (device["launch_s"], node["fabric"]["latency_s"]):
        delay["value"] /= part
    node["num_devices"] = world
    return Machine.described(fields)


def run_of(case: dict[str, Any], machine: Machine) -> Run:
    """Return a measured case as a run that the planner learns from and scores."""
    world = case["world"]
    scenario, layout = scenario_of(case, machine_for(world, machine))
    model, sequence = scenario.model, scenario.workload.sequence_length
    shape = f"{model.hidden_size} x {model.num_layers}, {sequence} tokens"
    recompute = ", recompute" if case["recompute"] != "none" else ""
    return Run(
        f"{case['strategy']} on {world}, {shape}{recompute}",
        "this machine",
        scenario.machine,
        f"{machine.name} as {scenario.machine.node.num_devices}",
        scenario.framework,
        scenario.model,
        scenario.workload,
        layout,
        case.get("step_time_s"),
        max(case["peak_bytes_per_rank"]) if "peak_bytes_per_rank" in case else None,
        "allocated",
        True,
        (),
    )


def choose(machine: Machine, count: int) -> list[Shape]:
    """Choose the small shards that remove most variance of the rows' errors for their time."""
    wanted, every = (_unmeasured(shapes, machine) for shapes in (ROWS, CANDIDATES))
    targets = Traits.joined([_traits(score) for score in wanted])
    traits, chosen = [_traits(score) for score in every], []
    while len(chosen) < count:
        known = Traits.joined([traits[place] for place in chosen]) if chosen else None
        removed = variance_removed(priors().step_time, Traits.joined([targets, *traits]), known)
        gain = removed[: len(wanted), len(wanted) :].sum(axis=0)
        gain /= [START_S + STEPS * score.estimate.step_time_s for score in every]
        gain[chosen] = 0.0
        chosen.append(int(np.argmax(gain)))
    return [CANDIDATES[place] for place in chosen]


def _unmeasured(shapes: Sequence[Shape], machine: Machine) -> list[Score]:
    scores = []
    for shape in shapes:
        case = {**_case(shape), "device": "cpu", "world": shape[1]}
        case["spread"] = asdict(spread_of(shape[0], shape[1]))
        scores += score([replace(run_of(case, machine), fits=True)]).scores
    return scores


def _traits(item: Score) -> Traits:
    layouts = Layouts.of(item.run.layout)
    return traits_of(item.run.scenario, layouts, item.estimate.step_time_parts_s)


# --- report ---------------------------------------------------------------------------------------


def _figures(backtest: Backtest, runs: Sequence[str]) -> list[str]:
    scores = [item for item in backtest.scores if item.run.row_id in runs]
    errors = [abs(item.error) for item in scores if item.error is not None]
    memory = [abs(item.memory_error) for item in scores if item.memory_error is not None]
    widths = [np.log(item.interval_s[1] / item.interval_s[0]) for item in scores if item.interval_s]
    return [
        f"{100 * np.median(errors):.1f} %",
        f"{100 * np.mean(errors):.1f} %",
        f"{100 * np.mean([item.covered for item in scores]):.0f} %",
        f"x{np.exp(np.median(widths)):.2f}",
        f"{100 * np.median(memory):.1f} %",
    ]


def page(machine: Machine, learned: Learned, cases: list[dict[str, Any]], seconds: float) -> str:
    """Write the page: figures before and after the probe, and every row."""
    runs = [run_of(case, machine) for case in cases]
    before, after = score(runs, Experience()), score(runs, learned.experience)
    quiet = [r.row_id for r, case in zip(runs, cases, strict=True) if not case["busy"]]
    groups = {
        f"all {len(runs)} rows": [run.row_id for run in runs],
        f"{len(quiet)} rows on otherwise idle cores": quiet,
        "of these, at most a rank a core": [
            r.row_id
            for r, case in zip(runs, cases, strict=True)
            if not case["busy"] and case["world"] <= num_cores()
        ],
    }
    lines = [
        "# Probe of this machine",
        "",
        f"Written by `python -m benchmarks.probe` on {date.today().isoformat()}, in "
        f"{seconds / 60:.0f} minutes on {num_cores()} cores of {platform.processor() or 'a CPU'} "
        f"({machine.device.name}), torch {torch.__version__}. Do not edit by hand.",
        "",
        f"{len(learned.scores)} small shards were measured, then {len(runs)} runs that no probe "
        "saw. Times are fast steps (10 % quantile) of the slowest rank; of a single rank its "
        "processor time. A row is busy if other "
        f"processes used more than {_MOST_FOREIGN} cores, or a rank got less than "
        f"{_LEAST_SHARE} of its core; busy rows do not count. Four ranks share two cores: each "
        "is estimated as half a core.",
        "",
        "| rows | probe | median error | mean error | in the 90 % interval | its width | "
        "median error of memory |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, members in groups.items():
        for when, backtest in (("before", before), ("after", after)):
            if members:
                lines.append(f"| {name} | {when} | {' | '.join(_figures(backtest, members))} |")
    lines += ["", "Small shards:", ""]
    lines += ["| shard | measured | estimated | error |", "|---|---:|---:|---:|"]
    lines += [_row(item, item) for item in learned.scores]
    lines += ["", "Rows, with the estimate after the probe:", ""]
    lines += [
        "| row | measured | estimated | error | before | cpu/wall | |",
        f"|---{'|---:' * 5}|---|",
    ]
    for case, old, new in zip(cases, before.scores, after.scores, strict=True):
        note = "busy" if case["busy"] else "" if new.covered else "outside"
        lines.append(
            f"{_row(new, old)} {100 * (old.error or 0):+.1f} % | {case['cpu_wall']:.2f} | {note} |"
        )
    return "\n".join(lines) + "\n"


def _row(new: Score, old: Score) -> str:
    measured = new.run.step_time_s or 0.0
    return (
        f"| {new.run.row_id} | {1e3 * measured:.1f} ms | {1e3 * new.estimate.step_time_s:.1f} ms | "
        f"{100 * (new.error or 0):+.1f} % |"
    )


def _calibrated(patience: int) -> Machine:
    """Calibrate; try again while other processes spoil the times. Raises PlannerError at last."""
    for _ in range(patience - 1):
        try:
            return calibrate("cpu", name="here")[0]
        except PlannerError as error:
            print(error, flush=True)
            time.sleep(_PAUSE_S)
    return calibrate("cpu", name="here")[0]


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = PAGE,
    profile: Annotated[str, typer.Option(help="Profile of this machine; empty: measure it.")] = "",
    shards: Annotated[int, typer.Option(min=2, max=5, help="Small shards.")] = 5,
    rows: Annotated[int, typer.Option(min=1, help="Rows to run, spread evenly.")] = len(ROWS),
    patience: Annotated[int, typer.Option(min=1, help="Attempts while the cores are busy.")] = 5,
) -> None:
    """Calibrate, probe, predict and run; write the page."""
    start = time.perf_counter()
    machine = load_machine(profile) if profile else _calibrated(patience)
    probes = measure(choose(machine, shards), patience)
    learned = learn([run_of(case, machine) for case in probes])
    places = np.linspace(0, len(ROWS) - 1, min(rows, len(ROWS))).round().astype(int)
    cases = measure([ROWS[place] for place in places], patience)
    text = page(machine, learned, cases, time.perf_counter() - start)
    output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    try:
        typer.run(main)
    except PlannerError as error:
        raise SystemExit(f"probe: {error}") from None
