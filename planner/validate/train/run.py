"""Run: train small shards on real ranks under every strategy, and compare the estimates."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planner.describe.catalogue import load_machine
from planner.describe.files import write_atomically
from planner.errors import PlannerError, shorten, shorten_path
from planner.validate.ranks.launch import launch
from planner.validate.ranks.rank import RankError, check_limit, external_rank, num_cores
from planner.validate.sharding.adapter import require_torch
from planner.validate.trace.limits import load_transformer
from planner.validate.train.expected import PEAK_TOLERANCE, estimate_peak, estimate_time
from planner.validate.train.strategies import OWN_MODEL, STRATEGIES, TASKS, spread_of
from planner.validate.train.tasks import RULES, fit_task, make_task, reduced, untie_embeddings


class ResultsError(PlannerError):
    """Results that cannot be read back."""


class ResultsFile:
    """Results by case, saved after each case; finished cases are not run again."""

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self.path, self.settings = path, settings
        self.cases: dict[str, Any] = {}
        self.extra: dict[str, Any] = {}
        if path is not None and path.exists():
            self._load(path)
        if path is not None:
            self.save()  # an unwritable path fails before the work, not after it

    def _load(self, path: Path) -> None:
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            settings, cases = data["settings"], data["cases"]
        except OSError as error:
            raise ResultsError(
                f"cannot read {shorten_path(path)}: {error.strerror}; check the path"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise ResultsError(
                f"{shorten_path(path)} holds no results of this command; move it or choose "
                "another path"
            ) from None
        if settings != self.settings:
            raise ResultsError(
                f"{shorten_path(path)} holds results of other settings "
                f"({_difference(settings, self.settings)}); move it or choose another path"
            )
        self.cases = {case["key"]: case for case in cases}

    def add(self, case: dict[str, Any]) -> None:
        """Add a finished case, and save."""
        self.cases[case["key"]] = case
        self.save()

    def save(self) -> None:
        """Write all results to the file."""
        if self.path is not None:
            text = json.dumps(self.as_dict(), indent=1, allow_nan=False)
            write_atomically(self.path, text + "\n")

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"settings": self.settings, **self.extra, "cases": list(self.cases.values())}


def _difference(old: Any, new: dict[str, Any]) -> str:
    if not isinstance(old, dict):
        return "unreadable"
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return ", ".join(f"{n}: {shorten(str(old.get(n)), 40)} in the file" for n in changed[:3])


MAX_WORLD = 64
_SEQUENCE = 128
"""Default sequence length of a user's model, in tokens."""
FAULTS = ("die", "hang", "disagree")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a validation run."""

    strategies: tuple[str, ...] = ("all",)
    tasks: tuple[str, ...] = TASKS
    world: int = 2
    timed_steps: int = 10
    attempts: int = 2
    limit_s: float = 60.0
    output: Path | None = None
    sizes: dict[str, dict[str, Any]] = field(default_factory=dict)
    model: str = ""
    """User's model in addition to the tasks: catalogue name, config.json or its folder."""
    exact: bool = False
    profile: str = ""
    """Machine name or profile; if stated, transformer cases get a step time estimated for it."""
    fault: str = ""
    """For tests: `kind:rank:step`, kind one of FAULTS."""


def run(options: RunOptions) -> dict[str, Any] | None:
    """Run all cases. Returns the results, or None on ranks other than 0 of a launcher."""
    version = require_torch()
    outer = external_rank(options.limit_s)
    world = outer.world if outer else options.world
    _check(options, world)
    if options.model:
        options = _with_model(options)
    machine = load_machine(options.profile) if options.profile else None
    cases, skipped = _cases(options, world)
    writes = outer is None or outer.rank == 0
    results = ResultsFile(options.output if writes else None, _settings(options, world, version))
    results.extra = {"skipped": skipped, "num_cores": num_cores()}
    # under a launcher only rank 0 reads the results, and all ranks must run the same cases
    todo = [case for case in cases if outer is not None or case["key"] not in results.cases]
    progress = _Progress(len(cases), len(cases) - len(todo), quiet=not writes)

    def finished(case: dict[str, Any]) -> None:
        case |= estimate_peak(case)
        if machine is not None:
            case |= estimate_time(case, machine)
        results.add(case)
        progress.finished(case)

    if todo:
        launch(
            "planner.validate.train.case:run_cases",
            world,
            {"cases": todo, "fault": options.fault},
            limit_s=options.limit_s,
            progress=progress.at,
            on_result=finished,
            outer=outer,
        )
    if writes:
        results.save()
    return results.as_dict() if writes else None


def _with_model(options: RunOptions) -> RunOptions:
    model, own_sizes = load_transformer(options.model), options.sizes.get(OWN_MODEL, {})
    sequence = own_sizes.get("sequence", _SEQUENCE)
    small_model = untie_embeddings(model)
    if not options.exact and isinstance(sequence, int):
        small_model = reduced(model, sequence)
        message = f"Running a reduced {model.name} ({RULES}); use --exact for the full size"
        print(message, file=sys.stderr)
    described = {**own_sizes, "sequence": sequence, "model": small_model.model_dump(mode="json")}
    sizes = {**options.sizes, OWN_MODEL: described}
    return replace(options, tasks=(*options.tasks, OWN_MODEL), sizes=sizes)


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
    if not isinstance(options.sizes, dict) or not all(
        name in (*TASKS, OWN_MODEL) and isinstance(fields, dict)
        for name, fields in options.sizes.items()
    ):
        raise RankError('sizes must name sizes by task, such as {"mlp": {"width": 256}}')
    faults = rf"({'|'.join(FAULTS)}):\d{{1,4}}:\d{{1,4}}"
    if options.fault and not re.fullmatch(faults, options.fault):
        raise RankError(
            f"fault = {shorten(options.fault, 40)!r} must be KIND:RANK:STEP with a kind of "
            f"{', '.join(FAULTS)}; give for example die:1:2"
        )
    for name in options.strategies:
        if name != "all" and name not in STRATEGIES:
            raise RankError(f"unknown strategy {name!r}; use all or {', '.join(STRATEGIES)}")
    for name in options.tasks:
        if name not in TASKS:
            raise RankError(f"unknown task {name!r}; use one of {', '.join(TASKS)}")


def _cases(options: RunOptions, world: int) -> tuple[list[dict[str, Any]], list[str]]:
    cases, skipped = [], []
    everything = "all" in options.strategies
    for task in options.tasks:
        for strategy in STRATEGIES if everything else options.strategies:
            try:
                fit_task(make_task(task, options.sizes.get(task)), spread_of(strategy, world))
            except PlannerError as error:
                if not everything:
                    raise
                skipped.append(str(error))
                continue
            cases.append(
                {
                    "key": f"{task}/{strategy}/{world}",
                    "task": task,
                    "strategy": strategy,
                    "sizes": options.sizes.get(task, {}),
                    "timed_steps": options.timed_steps,
                    "attempts": options.attempts,
                }
            )
    if not cases:
        raise RankError(f"no strategy fits world = {world}: {'; '.join(skipped[:3])}")
    return cases, sorted(set(skipped))


def _settings(options: RunOptions, world: int, version: str) -> dict[str, Any]:
    return {
        "world": world,
        "timed_steps": options.timed_steps,
        "sizes": options.sizes,
        "profile": options.profile,
        "torch": version,
    }


class _Progress:
    """Lines on standard error, at most one per step of rank 0."""

    def __init__(self, total: int, done: int, *, quiet: bool) -> None:
        self._total, self._done, self._quiet, self._last = total, done, quiet, ""
        if done and not quiet:
            print(f"{done} of {total} cases were finished before", file=sys.stderr)

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
        f"{case['task']:6}{case['strategy']:12}world {case['world']}  equal to 1 process "
        f"(loss {case['loss_error']:.0e})  {sent / 1e6:9.3f} MB sent, "
        f"{'as expected' if case['bytes_equal'] else 'NOT AS EXPECTED'}"
    )
    if case.get("planned_peak_bytes"):
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
        "peak": case.get("peak_within", True),
    }
    return [name for name, as_expected in differences.items() if not as_expected]


def _verdict(cases: list[dict[str, Any]]) -> str:
    wrong = [(case, _differences(case)) for case in cases if _differences(case)]
    if not wrong:
        return f"all {len(cases)} cases as expected"
    named = "; ".join(
        f"{c['task']} {c['strategy']}: {', '.join(problems)}" for c, problems in wrong
    )
    return f"{len(wrong)} of {len(cases)} cases NOT AS EXPECTED ({named})"


def exit_code(results: dict[str, Any] | None) -> int:
    """Exit code: 0 if everything is as expected, 1 if bytes, states or a peak are not."""
    cases = results["cases"] if results else []
    return 1 if any(_differences(case) for case in cases) else 0
