"""What commands print, and what `planner check` says of emitted folders, line by line."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from planner.cli import main
from tests.golden.evidence import EXAMPLE
from tests.golden.files import CASES, files

COMMANDS = {
    "plan": "plan gpt2-xl -m polaris -n 2 -f fsdp2 --seq-length 1024 --global-batch 64",
    "plan-training": "plan llama-3.2-1b -m vsc-5 -n 2 -f fsdp2 --tokens 50B --global-batch 64 "
    "--failures 1e-4 --node-power 2kW --price 3 --checkpoint-every 200 --evaluate-every 500",
    "plan-experts": "plan mixtral-8x7b -m dgx-h100 -n 4 -f megatron-lm --global-batch 128",
    "plan-nothing": "plan llama-3.1-70b -m vsc-5 -n 1 -f fsdp2 -f deepspeed --global-batch 64",
    "plan-odd-batch": "plan gpt2 -m aurora -n 1 -f fsdp2 --seq-length 1024 --global-batch 50",
    "estimate": "estimate llama-3-8b -m polaris --dp 4 --tp 4 --sp --pp 2 --schedule 1f1b "
    "--micro-batch 1 --global-batch 64 -f megatron-lm",
    "estimate-over": "estimate llama-3-8b -m vsc-5 --dp 4 --zero 2 --global-batch 64 -f fsdp2",
    "simulate": "simulate llama-3-8b -m polaris --dp 2 --tp 4 --sp --pp 4 --schedule 1f1b "
    "--micro-batch 1 --global-batch 64 -f megatron-lm",
    "ask-zero": "ask zero gpt2-xl -m polaris -f fsdp2 --seq-length 1024 --global-batch 64",
    "ask-memory": "ask memory llama-3-8b -m polaris -f megatron-lm --nodes 2 --global-batch 64",
    "collectives": "collectives polaris",
    "show-machine": "show aurora",
    "show-model": "show deepseek-v3",
    "show-framework": "show fsdp2",
    "datasets": "datasets",
}
MEASURED = {
    "backtest": "backtest runs.csv",
    "corrected": "estimate llama-3-70b -m selene --dp 8 --tp 8 --sp --pp 8 --schedule 1f1b "
    "--zero 1 --micro-batch 1 --global-batch 512 -f megatron-lm --measured runs.csv",
}
"""Commands that read measured runs."""
CHECKED = {
    **dict.fromkeys(("accelerate", "fsdp2", "torchtitan", "nanotron", "horovod"), "."),
    **dict.fromkeys(("ddp-slurm", "deepspeed-cpu", "megatron", "megatron-ramp"), "job.sh"),
}
"""Cases whose folder is checked, or only the job script with what it names."""


def printed(line: str) -> list[str]:
    """Return the exit code and the lines that a command prints."""
    out, code = io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main(shlex.split(line))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return [f"exit {code}", *(text.rstrip() for text in out.getvalue().splitlines())]


@contextlib.contextmanager
def _folder(written: dict[str, list[str]]) -> Iterator[None]:
    """Be in a folder with these files, line by line."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        for file, lines in written.items():
            (Path(place) / file).write_text("\n".join(lines) + "\n", encoding="utf-8")
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(before)


def checked(name: str) -> list[str]:
    """Return what `planner check` prints of the folder of a case."""
    with _folder(files(name)):
        return printed(
            f"check {CHECKED[name]} --model {CASES[name].model} -m {CASES[name].machine}"
        )


def measured(line: str) -> list[str]:
    """Return what a command prints beside runs.csv, the example's runs."""
    with _folder({"runs.csv": EXAMPLE.read_text(encoding="utf-8").splitlines()}):
        return printed(line)


def texts() -> dict[str, list[str]]:
    """Return everything that is kept."""
    found = {name: printed(line) for name, line in COMMANDS.items()}
    found |= {name: measured(line) for name, line in MEASURED.items()}
    return found | {f"check-{name}": checked(name) for name in CHECKED}
