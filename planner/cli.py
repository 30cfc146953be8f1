"""Command line: `planner plan`, `estimate` and `app`.

The commands that list what is described are in `cli_catalogue`, those that look at measurements
in `cli_evidence`.

Results go to standard output, progress and errors to standard error. Exit codes: 0 it fits,
1 nothing fits, 2 wrong use.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer

from planner import cli_catalogue, cli_evidence
from planner.catalogue import load_framework, load_machine, load_model
from planner.errors import PlannerError
from planner.units import parse_quantity
from planner.workload import Workload

__all__ = ["app", "main"]

FITS, NOTHING_FITS, WRONG_USE = 0, 1, 2

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which parallelism strategy fits a model on a machine, how fast it is, and why.",
)


class _Precision(StrEnum):
    fp32 = "fp32"
    tf32 = "tf32"
    fp16 = "fp16"
    bf16 = "bf16"
    fp8 = "fp8"


class _Optimizer(StrEnum):
    adam = "adam"
    adamw = "adamw"
    sgd = "sgd"
    sgd_momentum = "sgd-momentum"
    adafactor = "adafactor"
    adam_8bit = "adam-8bit"
    muon = "muon"


class _Attention(StrEnum):
    flash = "flash"
    eager = "eager"


class _Recompute(StrEnum):
    none = "none"
    selective = "selective"
    full = "full"


def _number(text: str) -> float:
    try:
        # in a count of tokens B is billions, not bytes
        return parse_quantity(re.sub(r"(?<=\d)\s*[bB]$", "G", str(text).strip()))
    except PlannerError as error:
        raise typer.BadParameter(str(error)) from None


MachineName = Annotated[str, typer.Option("--machine", "-m", help="Machine name or TOML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override of the profile: device.memory_bytes=80GB (repeatable)."),
]
Sequence = Annotated[
    int | None, typer.Option("--seq-length", "--sequence-length", help="Tokens per sequence.")
]
Precision = Annotated[_Precision, typer.Option(help="Number format of the matrix products.")]
Optimizer = Annotated[_Optimizer, typer.Option(help="Optimizer.")]
Attention = Annotated[_Attention, typer.Option(help="Attention kernel.")]
LoraRank = Annotated[int, typer.Option(help="Rank of LoRA adapters; 0 trains all weights.")]
LoraTargets = Annotated[
    str, typer.Option(help="Matrices with an adapter: query,key,value,out,gate,up,down.")
]
Frozen = Annotated[str, typer.Option(help="Parts without gradients: embedding,layers,head.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _workload(sequence: int | None, longest: int, **fields: Any) -> Workload:
    """The workload; the sequence defaults to the model's own, at most 4096 tokens."""
    if sequence is None:
        sequence = min(longest or 2048, 4096)
    return Workload.described({"sequence_length": sequence, **fields}, where="workload")


def _longest(model: Any) -> int:
    """The model's own sequence: its positions, or the patches of an image."""
    if model.vision is not None:
        return int((model.vision.image_size // model.vision.patch_size) ** 2 + 1)
    return int(model.max_sequence_length)


@app.command("plan")
def plan_command(
    model: Annotated[str, typer.Argument(help="Model name, TOML file or config.json.")],
    machine: MachineName,
    nodes: Annotated[int, typer.Option("--nodes", "-n", help="Nodes.")] = 1,
    seq_length: Sequence = None,
    global_batch: Annotated[
        int, typer.Option("--global-batch", "--global-batch-size", help="Sequences per step.")
    ] = 256,
    tokens: Annotated[
        float,
        typer.Option(parser=_number, metavar="NUMBER", help="Tokens to train on: 2e12, 300B."),
    ] = 0.0,
    precision: Precision = _Precision.bf16,
    optimizer: Optimizer = _Optimizer.adamw,
    attention: Attention = _Attention.flash,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "query,key,value,out",
    frozen: Frozen = "",
    framework: Annotated[
        list[str] | None, typer.Option("--framework", "-f", help="Framework (repeatable).")
    ] = None,
    overrides: Overrides = None,
    top: Annotated[int, typer.Option(min=1, max=1000, help="Ranked layouts to keep.")] = 20,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Search every layout: which strategy fits, how much memory, how long a step."""
    from planner.planning import plan

    described, place = load_model(model), load_machine(machine, tuple(overrides or ()))
    workload = _workload(
        seq_length,
        _longest(described),
        global_batch=global_batch,
        tokens=tokens,
        precision=str(precision),
        optimizer=str(optimizer),
        attention=str(attention),
        lora_rank=lora_rank,
        lora_targets=_words(lora_targets),
        frozen=_words(frozen),
    )
    answer = plan(
        described, place, nodes=nodes, workload=workload, frameworks=framework or (), top=top
    )
    if as_json:
        print(answer.to_json())
    elif as_csv:
        from planner.report import estimate_csv

        print(estimate_csv(answer.ranked), end="")
    else:
        from planner.report import console, show_plan

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
    recompute: Annotated[_Recompute, typer.Option()] = _Recompute.none,
    schedule: Annotated[
        str, typer.Option(help="Pipeline schedule; empty: 1f1b or interleaved.")
    ] = "",
    offload: Annotated[
        str, typer.Option(help="none, optimizer-cpu, optimizer-nvme, all-cpu, all-nvme.")
    ] = "none",
    tiles: Annotated[int, typer.Option(help="Tiles of the largest matrix (DeepSpeed ZeRO-3).")] = 1,
    seq_length: Sequence = None,
    precision: Precision = _Precision.bf16,
    optimizer: Optimizer = _Optimizer.adamw,
    attention: Attention = _Attention.flash,
    lora_rank: LoraRank = 0,
    lora_targets: LoraTargets = "query,key,value,out",
    frozen: Frozen = "",
    framework: Annotated[str | None, typer.Option("--framework", "-f")] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> int:
    """Estimate one layout: memory by part and stage, step time by part."""
    from planner.layout import Layout
    from planner.legality import check_division

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
    workload = _workload(
        seq_length,
        _longest(described),
        global_batch=layout.global_batch if global_batch is None else global_batch,
        precision=str(precision),
        optimizer=str(optimizer),
        attention=str(attention),
        lora_rank=lora_rank,
        lora_targets=_words(lora_targets),
        frozen=_words(frozen),
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
    from planner.estimation import Question, stage_memory
    from planner.planning import estimate, estimate_dict

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
        from planner.report import estimate_csv

        print(estimate_csv([answer]), end="")
    else:
        from planner.report import console, show_estimate

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
    page = Path(__file__).parent / "app" / "__main__.py"
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


if __name__ == "__main__":
    main()
