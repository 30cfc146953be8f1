"""Command line: `planner validate trace`, `run` and `collectives`.

Heavy imports happen inside the commands, so that `planner --help` loads none of them.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from planner.cli.options import AsJson
from planner.errors import CatalogueError

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    # `run` keeps its own options: torchrun and mpiexec start the same program
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    validate = typer.Typer(no_args_is_help=True, help="Check estimates with real torch.")
    validate.command("trace")(trace_command)
    settings: dict[str, Any] = {"context_settings": {**passed_on, "help_option_names": []}}
    validate.command("run", **settings)(run_command)
    validate.command("collectives", **settings)(measure_collectives_command)
    app.add_typer(validate, name="validate")


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
