"""Command line, evidence: `backtest`, `calibrate`, `collectives`, `compare`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import option_styles
from planner.cli.options.job_options import machine_of, read_files
from planner.describe.workload import TrainingPrecision
from planner.errors import FITS, REFUSED_ROWS, PlannerError, UnknownNameError, shorten_path
from planner.units import counted, parse_quantity
from planner.validate.program import calibrate_command as measure_command

if TYPE_CHECKING:
    from planner.cost.network.collective_table import Row
    from planner.cost.network.topology import GroupView
    from planner.describe.machine import Machine
    from planner.evidence.calibration import Calibration


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("backtest")(backtest_command)
    app.command("calibrate")(calibrate_command)
    app.command("collectives")(collectives_command)
    app.command("compare")(compare_command)


def backtest_command(
    runs: Annotated[Path, typer.Argument(help="CSV of measured runs.")],
    group_by: Annotated[
        str, typer.Option(help="Columns to group by: source,machine,model,...")
    ] = "source",
    measured: Annotated[
        list[Path] | None,
        typer.Option(help="Measured runs that correct the estimates; not scored (repeatable)."),
    ] = None,
    as_json: option_styles.AsJson = False,
) -> int:
    """Score estimates against measured runs, every row; exit 3 if rows were refused."""
    from planner.show.measured_runs import main
    from planner.show.terminal import console

    keys = [word.strip() for word in group_by.split(",")]
    return main(runs, as_json, keys, console(), measured or ())


def calibrate_command(
    output: Annotated[Path, typer.Option("--output", "-o", help="Profile to write.")],
    from_runs: Annotated[Path | None, typer.Option(help="CSV of measured runs.")] = None,
    from_collectives: Annotated[
        Path | None, typer.Option(help="Output of nccl-tests, or of `validate collectives --csv`.")
    ] = None,
    machine: Annotated[str, typer.Option("--machine", "-m", help="Machine of the runs.")] = "",
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Nodes, where collectives name none.")
    ] = None,
    network: option_styles.NetworkName = None,
    device: Annotated[str, typer.Option(help="Measure this host instead: cpu, cuda or xpu.")] = "",
) -> int:
    """Calibrate a hardware profile, from measured runs or by measuring this machine."""
    if device:
        return measure_command(output, device)
    if from_collectives is not None and machine:
        return _calibrate_links(output, from_collectives, machine, nodes, network)
    if from_runs is None or not machine:
        raise PlannerError(
            "calibrate needs --from-runs CSV or --from-collectives FILE with --machine NAME, or "
            "--device cpu|cuda|xpu"
        )
    from planner.describe.files import check_description_file
    from planner.evidence.calibration import calibrate, write_profile

    check_description_file(output)
    result = calibrate(from_runs, machine)
    write_profile(result, machine, output, from_runs.name)
    print(
        f"{shorten_path(output)}: sustained_fraction {result.sustained_fraction:.3f} from "
        f"{counted(result.num_runs, 'run')} on {result.machine}\n"
        f"median error before {100 * result.error_before:+.1f} %; mean |error| on the rows of the "
        f"fit {100 * result.error_after:.1f} %, which proves nothing\n{_held_out(result)}"
    )
    return 0


def _held_out(result: Calibration) -> str:
    folds = result.held_out
    if folds is None:
        runs = counted(result.num_runs, "run") + " of one layout" * (result.num_runs > 2)
        return (
            f"{runs}: too few to check the fit on other runs; add runs of other layouts or "
            "models, or give these to `plan --measured`"
        )
    message = (
        f"held out by {folds.apart}, {folds.num_folds} folds: mean |error| "
        f"{100 * folds.error_after:.1f} % with the fit, {100 * folds.error_before:.1f} % without"
    )
    worse = (
        "\nthe fit is worse than none on runs that it has not seen: keep the profile as it is, "
        "and give the runs to `plan --measured`"
    )
    return message + worse * folds.worse


def _calibrate_links(
    output: Path, path: Path, machine: str, nodes: int | None, network: str | None
) -> int:
    from planner.describe.files import check_description_file
    from planner.evidence.links import fit_links, write_links

    check_description_file(output)
    result = fit_links(path, machine_of(machine, network=network), nodes)
    write_links(result, machine, output)
    print(
        f"{shorten_path(output)}: {'; '.join(result.messages)}\n"
        f"mean |error| from 1 MiB on: {100 * result.error_before:.1f} % before, "
        f"{100 * result.error_after:.1f} % after, on the rows of the fit"
    )
    return 0


def collectives_command(
    machine_name: Annotated[
        str | None, typer.Argument(metavar="[MACHINE]", help="Machine name or TOML file.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", "-m", help="Machine, as an option.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="All devices of this many nodes.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Size of the group; starts at a node's first device.")
    ] = None,
    stride: Annotated[
        int, typer.Option(help="With --ranks: devices from rank to rank; 1 fills nodes.")
    ] = 1,
    size: Annotated[str, typer.Option(help="Buffer size, such as 64MiB.")] = "64MiB",
    operation: Annotated[
        str | None, typer.Option(help="Only one operation, such as broadcast.")
    ] = None,
    against: Annotated[Path | None, typer.Option(help="nccl-tests output or CSV to score.")] = None,
    network: option_styles.NetworkName = None,
    overrides: option_styles.Overrides = None,
    as_json: option_styles.AsJson = False,
) -> int:
    """Print collective times by algorithm, or score them against nccl-tests output."""
    from planner.show.reports.collective_report import collectives_text, score_text

    name = _one_machine(machine_name, machine)
    place = machine_of(name, overrides, network)
    if against is not None:
        from planner.evidence.nccl_tests import read_measured, score

        if ranks is not None or stride != 1 or operation is not None:
            raise PlannerError(
                "--against reads operations and ranks from the file; leave --ranks, --stride and "
                "--operation out"
            )
        measured, refused = read_measured(against, place, nodes)
        if as_json:
            scored = [{**asdict(item), "error": item.error} for item in measured]
            print(json.dumps({"rows": scored, "refused": refused}, indent=1))
        else:
            print(score_text(score(measured), refused))
        return REFUSED_ROWS if refused else FITS
    group, rows = _collectives(place, nodes, ranks, stride, parse_quantity(size), operation)
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(collectives_text(place, group, rows, parse_quantity(size), stride))
    return FITS


def _one_machine(argument: str | None, option: str | None) -> str:
    if argument and option and argument != option:
        raise PlannerError(f"{argument} and --machine {option} are two machines; name one")
    name = argument or option
    if not name:
        raise PlannerError("no machine is named; `planner machines` lists them")
    return name


def _collectives(
    place: Machine,
    nodes: int | None,
    ranks: int | None,
    stride: int,
    size_bytes: float,
    operation: str | None,
) -> tuple[GroupView, list[Row]]:
    from planner.cost.network.collective_table import OPERATIONS, group_of, table, whole_nodes

    if ranks is None and stride != 1:
        raise PlannerError(f"--stride {stride} goes with --ranks, the size of the group; give both")
    if ranks is not None and nodes is not None:
        raise PlannerError(
            "--nodes takes all devices of nodes, --ranks a group of any size; give one of them"
        )
    if operation is not None:
        plain = operation.replace("-", "_")
        if plain not in OPERATIONS:
            raise UnknownNameError("operation", operation, OPERATIONS, "nccl-tests' names")
        operation = plain
    nodes = 1 if nodes is None else nodes
    group = whole_nodes(place, nodes) if ranks is None else group_of(place, ranks, stride)
    if float(group.size) < 2:
        raise PlannerError(
            f"one device of {place.name} exchanges nothing; use --ranks or --nodes for a group of "
            "several"
        )
    rows = table(group, size_bytes)
    return group, [row for row in rows if operation in (None, row.operation)]


def compare_command(
    log: Annotated[
        Path,
        typer.Argument(help="Log, CSV or profile of a run, or a folder of TensorBoard events."),
    ],
    machine: option_styles.MachineName,
    layout: Annotated[
        Path | None,
        typer.Option(help="JSON of the job: a layout, or what `estimate --json` printed."),
    ] = None,
    files: option_styles.Files = None,
    model: Annotated[str | None, typer.Option(help="Model, where the file states none.")] = None,
    framework: option_styles.FrameworkName = None,
    seq_length: Annotated[int | None, typer.Option("--seq-length")] = None,
    precision: Annotated[
        TrainingPrecision | None, typer.Option(help="Precision, where the file states none.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(help="What a column holds, such as time_s=dt; may be repeated."),
    ] = None,
    as_json: option_styles.AsJson = False,
) -> int:
    """Compare a log with its estimate; exit 3 if log and job cannot belong to the same run."""
    from planner.evidence.logs.comparison import compare_log, comparison_dict, comparison_text
    from planner.evidence.logs.scalars import chosen_columns

    if files and layout:
        raise PlannerError("--layout and --from both state the job; give one of them")
    result = compare_log(
        log,
        machine,
        read_files(files) or layout,
        chosen_columns(column or []),
        model=model,
        framework=framework,
        sequence_length=seq_length,
        precision=precision,
    )
    print(json.dumps(comparison_dict(result), indent=1) if as_json else comparison_text(result))
    if not as_json and not result.doubts:
        print("to correct estimates: `planner plan ... --measured FILE`, with what --json prints")
    return REFUSED_ROWS if result.doubts else FITS
