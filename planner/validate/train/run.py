"""Run: train small shards on real ranks under every strategy, and compare the estimates."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.describe.catalogue import load_machine, load_model
from planner.describe.files import write_atomically
from planner.describe.model.model import Model
from planner.describe.model.traced_file import is_python_file
from planner.errors import PlannerError
from planner.validate.ranks.launch import launch
from planner.validate.ranks.rank import RankError, check_limit, external_rank, num_cores
from planner.validate.sharding.adapter import require_torch
from planner.validate.trace.limits import load_transformer
from planner.validate.train import tasks
from planner.validate.train.expected import PEAK_TOLERANCE, estimate_peak, estimate_time
from planner.validate.train.strategies import STRATEGIES, spread_of

MAX_WORLD = 64
CASES = "planner.validate.train.case:run_cases"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a validation run."""

    strategies: tuple[str, ...] = ("all",)
    world: int = 2
    timed_steps: int = 10
    attempts: int = 2
    limit_s: float = 60.0
    output: Path | None = None
    model: str = ""
    """User's model instead of the small GPT: catalogue name, config.json or its folder."""
    exact: bool = False
    batch: int = 8
    sequence: int = 128
    profile: str = ""
    """Machine name or profile; if stated, cases get a step time estimated for it."""


def run(options: RunOptions) -> dict[str, Any] | None:
    """Run all cases. Returns the results, or None on ranks other than 0 of a launcher."""
    version = require_torch()
    outer = external_rank(options.limit_s)
    world = outer.world if outer else options.world
    _check(options, world)
    machine = load_machine(options.profile) if options.profile else None
    cases, skipped = _cases(options, world)
    writes = outer is None or outer.rank == 0
    results: dict[str, Any] = {
        "world": world,
        "profile": options.profile,
        "torch": version,
        "num_cores": num_cores(),
        "skipped": skipped,
        "cases": [],
    }
    output = options.output if writes else None
    _save(results, output)  # an unwritable path fails before the work, not after it
    progress = _Progress(len(cases), quiet=not writes)

    def finished(case: dict[str, Any]) -> None:
        case |= estimate_peak(case)
        if machine is not None:
            case |= estimate_time(case, machine)
        results["cases"].append(case)
        _save(results, output)
        progress.finished(case)

    launch(
        CASES,
        world,
        {"cases": cases},
        limit_s=options.limit_s,
        progress=progress.at,
        on_result=finished,
        outer=outer,
    )
    return results if writes else None


def _save(results: dict[str, Any], output: Path | None) -> None:
    if output is not None:
        write_atomically(output, json.dumps(results, indent=1, allow_nan=False) + "\n")


def _model(options: RunOptions) -> Model:
    if not options.model:
        return tasks.SMALL_GPT.replaced(
            num_position_rows=options.sequence, max_sequence_length=options.sequence
        )
    if is_python_file(options.model):
        return load_model(options.model)
    model = load_transformer(options.model)
    if options.exact:
        return tasks.untie_embeddings(model)
    message = f"Running a reduced {model.name} ({tasks.RULES}); use --exact for the full size"
    print(message, file=sys.stderr)
    return tasks.reduced(model, options.sequence)


def _check(options: RunOptions, world: int) -> None:
    if not 1 <= world <= MAX_WORLD and external_rank(options.limit_s) is None:
        raise RankError(
            f"world = {world} must lie between 1 and {MAX_WORLD}; for more ranks start under "
            "torchrun, mpiexec or srun"
        )
    check_limit(options.limit_s)
    if options.timed_steps < 0 or options.attempts < 1:
        raise RankError(
            f"steps = {options.timed_steps} must not be negative, and attempts = "
            f"{options.attempts} must be at least 1"
        )
    for name in options.strategies:
        if name != "all" and name not in STRATEGIES:
            raise RankError(f"unknown strategy {name!r}; use all or {', '.join(STRATEGIES)}")


def _cases(options: RunOptions, world: int) -> tuple[list[dict[str, Any]], list[str]]:
    model = _model(options).model_dump(mode="json")
    task = tasks.make_task(model, options.batch, options.sequence, options.model)
    cases, skipped = [], []
    everything = "all" in options.strategies
    for strategy in STRATEGIES if everything else options.strategies:
        try:
            tasks.fit_task(task, spread_of(strategy, world))
        except PlannerError as error:
            if not everything:
                raise
            skipped.append(str(error))
            continue
        timed = {"timed_steps": options.timed_steps, "attempts": options.attempts}
        cases.append({"strategy": strategy, "task": tasks.fields_of(task), **timed})
    if not cases:
        raise RankError(f"no strategy fits world = {world}: {'; '.join(skipped[:3])}")
    return cases, sorted(set(skipped))


class _Progress:
    """Lines on standard error, at most one per step of rank 0."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self._total, self._done, self._quiet, self._last = total, 0, quiet, ""

    def at(self, rank: int, text: str) -> None:
        """Print the current activity of rank 0."""
        if rank == 0 and text != self._last and not self._quiet:
            self._last = text
            print(f"[{self._done + 1}/{self._total}] {text}", file=sys.stderr, flush=True)

    def finished(self, case: dict[str, Any]) -> None:
        """Print a finished case."""
        self._done += 1
        if not self._quiet:
            print(f"[{self._done}/{self._total}] {case_line(case)}", file=sys.stderr, flush=True)


def case_line(case: dict[str, Any]) -> str:
    """Format a case as one line."""
    sent = max(case["sent_bytes_per_rank"])
    text = (
        f"{case['strategy']:12}world {case['world']}  equal to 1 process "
        f"(loss {case['loss_error']:.0e})  {sent / 1e6:9.3f} MB sent, "
        f"{'as expected' if case['bytes_equal'] else 'NOT AS EXPECTED'}"
    )
    peak, error = max(case["peak_bytes_per_rank"]), case["peak_error"]
    within = "within" if case["peak_within"] else "NOT WITHIN"
    text += (
        f"  peak {peak / 1e6:.1f} MB, estimate {100 * error:+.1f} % ({within} "
        f"{100 * PEAK_TOLERANCE:.0f} %)"
    )
    if case["step_time_s"] is not None:
        text += f"  {1e3 * case['step_time_s']:8.1f} ms"
        if case.get("planned_step_time_s"):
            text += f" (planned {1e3 * case['planned_step_time_s']:.1f})"
        if case["load"]["why_not"]:
            text += f"  not scored: {case['load']['why_not']}"
    return text


def run_text(results: dict[str, Any]) -> str:
    """Format the results as text."""
    lines = [case_line(case) for case in results["cases"]]
    lines += [f"left out: {reason}" for reason in results.get("skipped", [])]
    lines.append(_verdict(results["cases"]))
    return "\n".join(lines)


def _differences(case: dict[str, Any]) -> list[str]:
    differences = {
        "bytes sent": case["bytes_equal"],
        "states": case["state_bytes_equal"],
        "peak": case["peak_within"],
    }
    return [name for name, as_expected in differences.items() if not as_expected]


def _verdict(cases: list[dict[str, Any]]) -> str:
    wrong = [(case, _differences(case)) for case in cases if _differences(case)]
    if not wrong:
        return f"all {len(cases)} cases as expected"
    named = "; ".join(f"{c['strategy']}: {', '.join(problems)}" for c, problems in wrong)
    return f"{len(wrong)} of {len(cases)} cases NOT AS EXPECTED ({named})"


def exit_code(results: dict[str, Any] | None) -> int:
    """Exit code: 0 if everything is as expected, 1 if bytes, states or a peak are not."""
    cases = results["cases"] if results else []
    return 1 if any(_differences(case) for case in cases) else 0
