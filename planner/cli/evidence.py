"""Command line, evidence: `backtest`, `calibrate`, `collectives`, `compare`, `validate`.

Heavy imports happen inside the commands, so that `planner --help` loads none of them.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.describe.catalogue import load_machine
from planner.errors import CatalogueError, PlannerError
from planner.units import format_bytes, format_rate, format_seconds, parse_quantity

__all__ = ["register"]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MachineName = Annotated[str, typer.Option("--machine", "-m", help="Machine name or TOML file.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("backtest")(backtest_command)
    app.command("calibrate")(calibrate_command)
    app.command("collectives")(collectives_command)
    app.command("compare")(compare_command)
    # `run` keeps its own options: torchrun and mpiexec start the same program
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    validate = typer.Typer(no_args_is_help=True, help="Check estimates with real torch.")
    validate.command("trace")(trace_command)
    settings: dict[str, Any] = {"context_settings": {**passed_on, "help_option_names": []}}
    validate.command("run", **settings)(run_command)
    validate.command("collectives", **settings)(measure_collectives_command)
    app.add_typer(validate, name="validate")


def backtest_command(
    runs: Annotated[Path, typer.Argument(help="CSV of measured runs.")],
    group_by: Annotated[
        str, typer.Option(help="Columns to group by: source,machine,model,...")
    ] = "source",
    as_json: AsJson = False,
) -> int:
    """Score estimates against measured runs, every row; exit 3 where rows were refused."""
    from planner.show.backtest import main
    from planner.show.report import console

    return main(runs, as_json, [word.strip() for word in group_by.split(",")], console())


def calibrate_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    from_runs: Annotated[Path | None, typer.Option(help="CSV of measured runs.")] = None,
    machine: Annotated[str, typer.Option("--machine", "-m", help="Machine of the runs.")] = "",
    device: Annotated[str, typer.Option(help="Measure this host instead: cpu, cuda or xpu.")] = "",
) -> int:
    """Calibrate a hardware profile, from measured runs or by measuring this machine."""
    if device:
        from planner.validate.__main__ import main

        return main(["calibrate", "--device", device, "-o", str(output)])
    if from_runs is None or not machine:
        raise PlannerError(
            "calibrate needs --from-runs CSV with --machine NAME, or --device cpu|cuda|xpu"
        )
    from planner.evidence.calibration import calibrate, write_profile

    result = calibrate(from_runs, machine)
    write_profile(result, machine, output, from_runs.name)
    print(
        f"{output}: sustained_fraction {result.sustained_fraction:.3f} from {result.num_runs} "
        f"runs on {result.machine}\n"
        f"median error before {100 * result.error_before:+.1f} %; mean |error| on these rows "
        f"{100 * result.error_after:.1f} %, on rows held out of the fit "
        f"{100 * result.held_out_error:.1f} %"
    )
    return 0


def collectives_command(
    machine: MachineName,
    nodes: Annotated[int | None, typer.Option("--nodes", "-n", help="Nodes.")] = None,
    size: Annotated[str, typer.Option(help="Buffer size, such as 64MiB.")] = "64MiB",
    against: Annotated[Path | None, typer.Option(help="nccl-tests output or CSV to score.")] = None,
    as_json: AsJson = False,
) -> int:
    """Time of every collective by algorithm, or its score against nccl-tests output."""
    from planner.cost.network.table import table
    from planner.evidence.nccl_tests import read_measured, score

    place = load_machine(machine)
    if against is not None:
        measured, refused = read_measured(against, place, nodes)
        groups = score(measured)
        if as_json:
            scored = [{**asdict(item), "error": item.error} for item in measured]
            print(json.dumps({"rows": scored, "refused": refused}, indent=1))
        else:
            for name, count, runs, mean, median in groups:
                print(
                    f"{name:26} {count:>4} nodes {runs:>4} runs  mean |error| {100 * mean:5.1f} %"
                    f"  median {100 * median:+6.1f} %"
                )
            for reason in refused[:10]:
                print(f"refused: {reason}")
        return 3 if refused else 0
    rows = table(place, nodes or 1, parse_quantity(size))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    print(
        f"{format_bytes(parse_quantity(size))} over {(nodes or 1) * place.node.num_devices} devices"
    )
    for row in rows:
        mark = "used" if row.used else ""
        print(
            f"{row.operation:16} {row.algorithm:14} {format_seconds(row.time_s):>10} "
            f"{format_rate(row.bus_bytes_per_s):>12}  {mark}"
        )
    return 0


def compare_command(
    log: Annotated[Path, typer.Argument(help="Log of a training run.")],
    machine: MachineName,
    layout: Annotated[
        Path | None,
        typer.Option(help="JSON of the job: a layout, or what `estimate --json` printed."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model, where the file states none.")] = None,
    framework: Annotated[str | None, typer.Option("--framework", "-f")] = None,
    seq_length: Annotated[int | None, typer.Option("--seq-length")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, tf32, fp16, bf16 or fp8.")] = None,
    as_json: AsJson = False,
) -> int:
    """Compare a real run's log with its estimate."""
    from planner.evidence.logs.compare import compare_log, comparison_dict, comparison_text

    result = compare_log(
        log,
        machine,
        layout,
        model=model,
        framework=framework,
        sequence_length=seq_length,
        precision=precision,
    )
    print(json.dumps(comparison_dict(result), indent=1) if as_json else comparison_text(result))
    return 0


def trace_command(
    model: Annotated[str, typer.Argument(help="Model name, TOML file or config.json.")],
    world: Annotated[int, typer.Option(help="Ranks.")] = 8,
    machine: Annotated[str, typer.Option("--machine", "-m")] = "dgx-h100",
    tp: Annotated[int, typer.Option("--tp")] = 1,
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", "--sp")] = False,
    pp: Annotated[int, typer.Option("--pp")] = 1,
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
    """Trace one rank of the real sharded model, without an accelerator, beside its estimate.

    Both are without dropout.
    """
    from planner.describe.workload import Workload
    from planner.validate.trace.command import run

    others = tp * pp
    degrees: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "zero_stage": zero,
        "recompute": recompute,
        "micro_batch": micro_batch,
        "grad_accumulation": accumulation,
        "sequence_parallel": sequence_parallel,
        "schedule": "1f1b" if pp > 1 else "none",
    }
    workload = Workload.described(
        {
            "sequence_length": seq_length,
            "global_batch": max(world // max(others, 1), 1) * micro_batch * accumulation,
            "dropout": 0.0,
        }
    )
    print(
        run(
            model,
            as_json=as_json,
            world=world,
            machine=machine,
            stage=stage,
            optimizer=optimizer,
            full_depth=full_depth,
            workload=workload,
            **degrees,
        )
    )
    return 0


def run_command(context: typer.Context) -> int:
    """Train small shards on real ranks; `planner validate run -h` lists the options."""
    return _passed_on("run", context)


def measure_collectives_command(context: typer.Context) -> int:
    """Time real collectives, alone and between matrix products; `-h` lists the options."""
    return _passed_on("collectives", context)


def _passed_on(command: str, context: typer.Context) -> int:
    try:
        from planner.validate.__main__ import main
    except ImportError as error:
        raise CatalogueError(
            f"{error}; install the extra: pip install 'parallelism-planner[torch]'"
        ) from None
    return main([command, *context.args])
