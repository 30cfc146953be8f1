"""Program: the commands of `planner validate`; each imports torch only when it runs."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from planner.errors import INTERRUPTED, shorten_path
from planner.validate.train.strategies import STRATEGIES

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
World = Annotated[int, typer.Option(help="Ranks (ignored under a launcher).")]
Limit = Annotated[
    float, typer.Option(help="Seconds without progress after which a rank counts as hanging.")
]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Check estimates with real torch.",
)


def register(program: typer.Typer) -> None:
    """Add the commands to the program as `planner validate`."""
    program.add_typer(app, name="validate")


@app.command("trace")
def trace_command(
    model: Annotated[str, typer.Argument(help="Model: name, TOML file, config.json, org/name.")],
    world: Annotated[int, typer.Option(help="Ranks.")] = 8,
    machine: Annotated[str, typer.Option("--machine", "-m")] = "dgx-h100",
    tp: Annotated[int, typer.Option("--tp")] = 1,
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", "--sp")] = False,
    pp: Annotated[int, typer.Option("--pp")] = 1,
    vpp: Annotated[int, typer.Option("--vpp", help="Chunks per stage, interleaved.")] = 1,
    cp: Annotated[int, typer.Option("--cp")] = 1,
    ep: Annotated[int, typer.Option("--ep", help="Ranks that share the experts.")] = 1,
    stage: Annotated[int, typer.Option(help="Pipeline stage to trace.")] = 0,
    zero: Annotated[int, typer.Option("--zero")] = 3,
    recompute: Annotated[str, typer.Option(help="none, selective or full.")] = "none",
    micro_batch: Annotated[int, typer.Option("--micro-batch")] = 1,
    accumulation: Annotated[int, typer.Option("--grad-accumulation")] = 1,
    seq_length: Annotated[int, typer.Option("--seq-length")] = 2048,
    optimizer: Annotated[str, typer.Option(help="fused or foreach.")] = "fused",
    full_depth: Annotated[bool, typer.Option(help="Trace every layer, do not extend.")] = False,
    as_json: AsJson = False,
) -> int:
    """Trace a rank of the real sharded model.

    Needs no accelerator. Prints the trace next to the estimate, both without dropout.
    """
    from planner.describe.workload import Workload
    from planner.validate.trace.compare import compare_trace, report_json, report_text

    model_ranks = tp * pp * cp
    workload = Workload.described(
        {
            "sequence_length": seq_length,
            "global_batch": max(world // max(model_ranks, 1), 1) * micro_batch * accumulation,
            "dropout": 0.0,
        }
    )
    comparison = compare_trace(
        model,
        world=world,
        machine=machine,
        stage=stage,
        optimizer=optimizer,
        full_depth=full_depth,
        workload=workload,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        ep=ep,
        zero_stage=zero,
        recompute=recompute,
        micro_batch=micro_batch,
        grad_accumulation=accumulation,
        sequence_parallel=sequence_parallel,
        schedule=("1f1b" if vpp == 1 else "interleaved-1f1b") if pp > 1 else "none",
    )
    print(report_json(comparison) if as_json else report_text(comparison))
    return 0


@app.command("run")
def run_command(
    module: Annotated[
        str, typer.Argument(help="FILE.py:FUNCTION of your own module (the file is run).")
    ] = "",
    strategy: Annotated[
        list[str] | None,
        typer.Option(help=f"Repeatable: all, {', '.join(STRATEGIES)}.", show_default="all"),
    ] = None,
    world: World = 2,
    steps: Annotated[int, typer.Option(help="Timed steps; 0 times nothing.")] = 10,
    attempts: Annotated[int, typer.Option(help="Timings while cores are busy.")] = 2,
    limit: Limit = 60.0,
    profile: Annotated[
        str, typer.Option(help="Hardware profile for which step times are estimated, too.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file of the results.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model name, TOML file, config.json, org/name; else a small GPT.")
    ] = "",
    batch: Annotated[int, typer.Option(help="Sequences of a step.")] = 8,
    seq_length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 128,
    exact: Annotated[bool, typer.Option("--exact", help="Full-size model, not reduced.")] = False,
    as_json: AsJson = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Run on the CPU only.")] = False,
) -> int:
    """Train a small model on real ranks under every strategy, and check them.

    Losses and final parameters must equal those of a single process, bytes per step and rank must
    be exact, peak memory within 10 % of the estimate. Times count only if the cores were otherwise
    idle. Exit codes: 0 as expected; 1 bytes, states or a peak are not; 2 wrong use, or a rank
    failed or disagrees; 130 interrupted.
    """
    from planner.validate.sharding.adapter import require_torch

    require_torch()
    from planner.validate.train.run import RunOptions, exit_code, run, run_text

    if cpu:
        os.environ["PLANNER_CPU"] = "1"
    options = RunOptions(
        strategies=tuple(strategy or ("all",)),
        world=world,
        timed_steps=steps,
        attempts=attempts,
        limit_s=limit,
        output=output,
        batch=batch,
        sequence=seq_length,
        profile=profile,
        model=module or model,
        exact=exact,
    )
    try:
        results = run(options)
    except KeyboardInterrupt:
        print("planner: interrupted", file=sys.stderr, flush=True)
        return INTERRUPTED
    if results is not None:
        print(json.dumps(results, indent=1) if as_json else run_text(results))
    return exit_code(results)


@app.command("collectives")
def collectives_command(
    world: World = 2,
    operation: Annotated[
        list[str] | None,
        typer.Option(help="Repeatable: all_reduce, broadcast, ...", show_default="all"),
    ] = None,
    largest: Annotated[str, typer.Option(help="Largest buffer, such as 1GiB.")] = "16MiB",
    limit: Limit = 60.0,
    as_json: AsJson = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV that `planner calibrate` reads.")
    ] = False,
) -> int:
    """Time real collectives, and check their results.

    Each is timed alone, some also between matrix products as in a training step.
    """
    from planner.units import parse_quantity
    from planner.validate.sharding.adapter import require_torch

    require_torch()
    from planner.validate.measure import collective_times

    result = collective_times.measure_collectives(
        world,
        operations=tuple(operation or collective_times.OPERATIONS),
        sizes=[size for size in collective_times.SIZES if size <= parse_quantity(largest)],
        limit_s=limit,
        progress=_progress,
    )
    if result is not None:
        text = collective_times.collectives_csv if as_csv else collective_times.collectives_text
        print(json.dumps(result, indent=1) if as_json else text(result))
    return 0


@app.command("calibrate")
def calibrate_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write, a .toml.")],
    device: Annotated[str, typer.Option(help="cpu, cuda or xpu.")] = "cpu",
    devices: Annotated[
        int | None, typer.Option(help="How many of them.", show_default="all")
    ] = None,
    limit: Limit = 120.0,
) -> int:
    """Measure this node, and write a hardware profile."""
    from planner.validate.sharding.adapter import require_torch

    require_torch()
    from planner.validate.measure.node_calibration import calibrate_to_file

    machine = calibrate_to_file(output, device, devices=devices, limit_s=limit, progress=_progress)
    print(f"{shorten_path(output)}: {machine.title}")
    for note in machine.notes:
        print(note)
    return 0


def _progress(rank: int, text: str) -> None:
    if not rank:
        print(text, file=sys.stderr, flush=True)
