"""Command line: `planner plan`, `estimate` and `app`.

The commands that list what is described are in `cli_catalogue`, the one that writes files in
`cli_emit`, those that look at measurements in `cli_evidence`; options they share in `cli_options`.

Results go to standard output, progress and errors to standard error. Exit codes: 0 it fits,
1 nothing fits, 2 wrong use.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from planner.cli import catalogue as cli_catalogue
from planner.cli import emit as cli_emit
from planner.cli import evidence as cli_evidence
from planner.cli.options import (
    FITS,
    NOTHING_FITS,
    WRONG_USE,
    AsCsv,
    AsJson,
    Attention,
    AttentionName,
    Frameworks,
    Frozen,
    GlobalBatch,
    LoraRank,
    LoraTargets,
    MachineName,
    Optimizer,
    OptimizerName,
    Overrides,
    Precision,
    PrecisionName,
    RecomputeName,
    Sequence,
    Tokens,
    longest,
    words,
    workload_of,
)
from planner.describe.catalogue import load_framework, load_machine, load_model
from planner.describe.workload import Workload
from planner.errors import PlannerError

__all__ = ["FITS", "NOTHING_FITS", "WRONG_USE", "app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which parallelism strategy fits a model on a machine, how fast it is, and why.",
)


@app.command("plan")
def plan_command(
    model: Annotated[str, typer.Argument(help="Model name, TOML file or config.json.")],
    machine: MachineName,
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Nodes.")] = 1,
    seq_length: Sequence = None,
    global_batch: GlobalBatch = 256,
    tokens: Tokens = 0.0,
    precision: Precision = PrecisionName.bf16,
    optimizer: Optimizer = OptimizerName.adamw,
    attention: Attention = AttentionName.flash,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "query,key,value,out",
    frozen: Frozen = "",
    framework: Frameworks = None,
    overrides: Overrides = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Ranked layouts to keep.")] = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Search every layout: which strategy fits, how much memory, how long a step."""
    from planner.choose.planning import plan

    described, place = load_model(model), load_machine(machine, tuple(overrides or ()))
    workload = workload_of(
        seq_length,
        longest(described),
        global_batch=global_batch,
        tokens=tokens,
        precision=str(precision),
        optimizer=str(optimizer),
        attention=str(attention),
        lora_rank=lora_rank,
        lora_targets=words(lora_targets),
        frozen=words(frozen),
    )
    answer = plan(
        described, place, nodes=nodes, workload=workload, frameworks=framework or (), top=top
    )
    if as_json:
        print(answer.to_json())
    elif as_csv:
        from planner.show.report import estimate_csv

        print(estimate_csv(answer.ranked), end="")
    else:
        from planner.show.report import console, show_plan

        show_plan(answer, console())
    return FITS if answer.fits else NOTHING_FITS


@app.command("estimate")
def estimate_command(
    model: Annotated[str, typer.Argument(help="Model name, TOML file or config.json.")],
    machine: MachineName,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", help="Nodes; dp follows from them if not given.")
    ] = None,
    dp: Annotated[int | None, typer.Option("--dp", "--data-parallel-size")] = None,
    dp_shard: Annotated[int, typer.Option(help="Ranks that shard (hybrid); 0: all replicas.")] = 0,
    tp: Annotated[int, typer.Option("--tp", "--tensor-parallel-size")] = 1,
    sequence_parallel: Annotated[bool, typer.Option("--sequence-parallel", "--sp")] = False,
    pp: Annotated[int, typer.Option("--pp", "--pipeline-parallel-size")] = 1,
    vpp: Annotated[int, typer.Option("--vpp", help="Chunks per stage.")] = 1,
    cp: Annotated[int, typer.Option("--cp", "--context-parallel-size")] = 1,
    ep: Annotated[int, typer.Option("--ep", "--expert-parallel-size")] = 1,
    zero: Annotated[int, typer.Option("--zero", "--zero-stage", help="ZeRO stage; FSDP is 3.")] = 0,
    micro_batch: Annotated[int, typer.Option("--micro-batch", "--micro-batch-size")] = 1,
    global_batch: Annotated[
        int | None,
        typer.Option("--global-batch", "--global-batch-size", help="Sequences per step."),
    ] = None,
    recompute: Annotated[RecomputeName, typer.Option()] = RecomputeName.none,
    schedule: Annotated[
        str, typer.Option(help="Pipeline schedule; empty: 1f1b or interleaved.")
    ] = "",
    offload: Annotated[
        str, typer.Option(help="none, optimizer-cpu, optimizer-nvme, all-cpu, all-nvme.")
    ] = "none",
    tiles: Annotated[int, typer.Option(help="Tiles of the largest matrix (DeepSpeed ZeRO-3).")] = 1,
    seq_length: Sequence = None,
    precision: Precision = PrecisionName.bf16,
    optimizer: Optimizer = OptimizerName.adamw,
    attention: Attention = AttentionName.flash,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "query,key,value,out",
    frozen: Frozen = "",
    framework: Annotated[str | None, typer.Option("--framework", "-f")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Estimate one layout: memory by part and stage, step time by part."""
    from planner.choose.legality import check_division
    from planner.describe.layout import Layout

    described, place = load_model(model), load_machine(machine, tuple(overrides or ()))
    dp = check_division(place, nodes, dp, tp * pp * cp)
    accumulation = 1
    if global_batch is not None:
        accumulation = max(global_batch // (dp * micro_batch), 1) if dp and micro_batch else 1
    chosen = schedule or ("none" if pp == 1 else "1f1b" if vpp == 1 else "interleaved-1f1b")
    layout = Layout.described(
        {
            "dp": dp,
            "dp_shard": dp_shard,
            "tp": tp,
            "sequence_parallel": sequence_parallel,
            "pp": pp,
            "vpp": vpp,
            "cp": cp,
            "ep": ep,
            "zero_stage": zero,
            "micro_batch": micro_batch,
            "grad_accumulation": accumulation,
            "recompute": str(recompute),
            "schedule": chosen,
            "offload": offload,
            "tiles": tiles,
        }
    )
    workload = workload_of(
        seq_length,
        longest(described),
        global_batch=layout.global_batch if global_batch is None else global_batch,
        precision=str(precision),
        optimizer=str(optimizer),
        attention=str(attention),
        lora_rank=lora_rank,
        lora_targets=words(lora_targets),
        frozen=words(frozen),
    )
    return _print_estimate(described, place, layout, workload, framework, as_json, as_csv)


def _print_estimate(
    model: Any,
    machine: Any,
    layout: Any,
    workload: Workload,
    framework: str | None,
    as_json: bool,
    as_csv: bool,
) -> int:
    from planner.choose.plan import estimate_dict
    from planner.choose.planning import estimate
    from planner.cost.estimate import stage_memory
    from planner.describe.question import Question

    answer = estimate(model, machine, layout, workload=workload, framework=framework)
    question = Question(
        model,
        machine,
        workload,
        load_framework(answer.framework) if framework is None else load_framework(framework),
    )
    if as_json:
        stages = stage_memory(question, layout)
        print(json.dumps({**estimate_dict(answer), "stages": stages}, indent=1, allow_nan=False))
    elif as_csv:
        from planner.show.report import estimate_csv

        print(estimate_csv([answer]), end="")
    else:
        from planner.show.report import console, show_estimate

        show_estimate(answer, machine, stage_memory(question, layout), console())
    return FITS if answer.fits else NOTHING_FITS


@app.command("app")
def app_command(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 8501,
    headless: Annotated[bool, typer.Option(help="Open no browser.")] = False,
) -> int:
    """Open the explorer in a browser (extra `app`)."""
    import importlib.util
    import subprocess
    import threading
    import webbrowser
    from pathlib import Path

    if importlib.util.find_spec("streamlit") is None or importlib.util.find_spec("plotly") is None:
        raise PlannerError(
            "the explorer needs streamlit and plotly; install them with "
            "`pip install 'parallelism-planner[app]'`"
        )
    page = Path(__file__).parents[1] / "app" / "__main__.py"
    # Streamlit's own way to open a browser asks for an e-mail address first
    options = [f"--server.port={port}", "--server.headless=true"]
    options += ["--server.address=127.0.0.1", "--browser.gatherUsageStats=false"]
    options += ["--server.maxUploadSize=5", "--client.toolbarMode=minimal"]
    options += ["--client.showErrorDetails=none"]
    if not headless:
        opening = threading.Timer(3, webbrowser.open, (f"http://127.0.0.1:{port}",))
        opening.daemon = True
        opening.start()
    try:
        return subprocess.call([sys.executable, "-m", "streamlit", "run", str(page), *options])
    except KeyboardInterrupt:
        return FITS


cli_catalogue.register(app)
cli_emit.register(app)
cli_evidence.register(app)


def _fail(message: str) -> NoReturn:
    print(f"planner: {message}", file=sys.stderr)
    sys.exit(WRONG_USE)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit; no traceback reaches a user."""
    run: Callable[..., Any] = typer.main.get_command(app)
    try:
        code = run(arguments, standalone_mode=False)
    except PlannerError as error:
        _fail(str(error))
    except typer.Abort:
        _fail("interrupted")
    except BrokenPipeError:
        # the reader of the pipe has what it wanted
        sys.stderr.close()
        sys.exit(FITS)
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            _fail(f"{error.format_message()} (`planner --help` shows the options)")
        raise
    sys.exit(code if isinstance(code, int) else FITS)
