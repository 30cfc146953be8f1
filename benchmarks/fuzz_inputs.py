"""Inputs for fuzz: every kind of planner input, corrupted by a seeded generator.

A kind is a function of a generator and a folder: it makes one input, uses it as a user would, and
raises `Odd` if the answer is not finite or makes no sense.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import math
import random
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import planner
from planner import Layout, Workload
from planner.cli import main as command_line
from planner.describe.catalogue import folder as catalogue_folder
from planner.describe.catalogue import names
from planner.describe.framework.framework import Framework
from planner.describe.layout import OFFLOAD, RECOMPUTE, V_SHAPED
from planner.describe.model.huggingface.config import FAMILIES
from planner.describe.workload import ATTENTIONS, OPTIMIZERS, PRECISIONS

__all__ = ["KINDS", "Odd", "Refused"]

_ROOT = Path(__file__).parent.parent
MODELS = ("gpt2", "llama-3-8b", "mixtral-8x7b", "vit-h-14", "bert-large", "gemma-2-27b")
MACHINES = ("polaris", "aurora", "laptop", "dgx-h100", "lumi-g", "vsc-4", "summit")
_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 8, 64, 1000, 65536, 10**6, 10**9, 2**31, 2**63, 10**20, -(2**63)),
    *(0.5, -0.5, 1e-9, 1e-300, 1e18, 1e300, math.inf, -math.inf, math.nan, 5e-324),
)
_TEXTS = (
    "",
    " ",
    "x",
    "0",
    "-1",
    "nan",
    "inf",
    "1e400",
    "1.2.3",
    ".",
    "\0",
    "\u202e",
    "none",
    "..",
)
_OTHERS: tuple[Any, ...] = (True, False, None, [], {}, [1, "x", None], {"a": {"b": [1]}}, [[]])


class Odd(Exception):
    """Raised for an answer that is not finite or makes no sense."""


class Refused(Exception):
    """Raised when the command line ends with exit code 2; carries its text."""


def odd_value(rng: random.Random) -> Any:
    """Return a random number, text, or other value."""
    return copy.deepcopy(rng.choice(rng.choice((_NUMBERS, _NUMBERS, _TEXTS, _OTHERS))))


def odd_number(rng: random.Random) -> Any:
    """Return a number that may be absurd or near a limit."""
    if rng.random() < 0.5:
        return rng.choice(_NUMBERS)
    return rng.choice((1, 1.0)) * 10 ** rng.randint(0, 12) * rng.randint(-2, 9)


# --- checks of every answer ---------------------------------------------------------------------


def check_finite(data: Any, where: str = "answer") -> None:
    """Raise Odd if any number is not finite."""
    if isinstance(data, dict):
        for key, value in data.items():
            check_finite(value, f"{where}.{key}")
    elif isinstance(data, list | tuple):
        for value in data:
            check_finite(value, where)
    elif isinstance(data, float) and not math.isfinite(data):
        raise Odd(f"{where} is {data}")


def check_estimate(found: Any) -> None:
    """Raise Odd if a part of an estimate is not finite or negative, or the MFU is above 1."""
    for name in ("step_time_parts_s", "memory_bytes", "host_memory_bytes"):
        for part, value in getattr(found, name).items():
            if not (math.isfinite(value) and value >= 0):
                raise Odd(f"{name}.{part} is {value}")
    if not 0 <= found.mfu <= 1.0001:
        raise Odd(f"mfu is {found.mfu}")
    check_finite(list(found.interval_step_time_s))


def ask(arguments: list[str]) -> None:
    """Run a command in this process: JSON must be finite, a refusal exits with 2 and one line."""
    printed, said = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            command_line(arguments)
        except SystemExit as stop:
            code = stop.code
    if code == 2:
        raise Refused("usage" if said.getvalue().startswith("Usage:") else said.getvalue())
    if code not in (0, 1, 3):
        raise Odd(f"exit code {code}: {said.getvalue()[-300:]}")
    if "--json" in arguments and printed.getvalue()[:1] in ("{", "["):
        check_finite(json.loads(printed.getvalue()))


# --- corrupting text and data -------------------------------------------------------------------


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container in the data with each of its keys or indices."""
    items: Any = ()
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    for key, value in items:
        yield data, key
        yield from places(value)


def changed(rng: random.Random, data: Any) -> Any:
    """Return the data with one to three values replaced, removed or added."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        found = list(places(data))
        if not found:
            return odd_value(rng)
        holder, key = rng.choice(found)
        how = rng.random()
        if how < 0.15:
            del holder[key]
        elif how < 0.2 and isinstance(holder, dict):
            holder[rng.choice(_TEXTS) or "new"] = odd_value(rng)
        elif how < 0.7 and isinstance(holder[key], int | float):
            holder[key] = odd_number(rng)
        else:
            holder[key] = odd_value(rng)
    return data


def garbled(rng: random.Random, text: str) -> str:
    """Return the text with a few pieces cut, doubled, replaced or inserted."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randint(0, len(text))
        end = min(at + rng.choice((0, 1, 3, 20, 200)), len(text))
        piece = rng.choice(
            (
                *(str(rng.choice(_NUMBERS)), rng.choice(_TEXTS), "", text[at:end] * 2),
                *("9" * rng.choice((20, 400, 5000)), '"', "'", "[" * 2000, "\n", "\r", ",", ";"),
                *("=", "{", "}", "\x1b[31m", "\ufeff", "-", ".", "e", "1_0", "\t", "%"),
            )
        )
        text = text[:at] + piece + text[end:]
    return text


def numbers_replaced(rng: random.Random, text: str) -> str:
    """Return the text with one or two words replaced by odd values."""
    words = text.split(" ")
    for _ in range(rng.choice((1, 2))):
        words[rng.randrange(len(words))] = str(odd_value(rng))
    return " ".join(words)


def written(rng: random.Random, folder: Path, name: str, text: str) -> str:
    """Write a file with the text, sometimes cut within a character."""
    data = text.encode("utf-8", errors="replace")
    if rng.random() < 0.05:
        data = rng.choice((data[: rng.randint(0, len(data))], b"\xff\xfe" + data, b"\x80" + data))
    path = folder / name
    path.write_bytes(data)
    return str(path)


# --- layouts, workloads, overrides ----------------------------------------------------------------

_DEGREES = (1, 1, 1, 2, 2, 4, 8)
_LARGE = (3, 12, 64, 1000, 65_536, 100_000, 10_000_000)


def random_layout(rng: random.Random, framework: Framework) -> dict[str, Any]:
    """Draw the fields of a layout, mostly values that the framework supports."""
    axes = framework.axes
    pp = rng.choice((1, 1, 2, 4)) if "pp" in axes else 1
    tp = rng.choice((1, 1, 2, 4)) if "tp" in axes else 1
    schedules = [name for name in framework.schedules if name != "none"]
    stages = framework.zero_stages_with_pipeline if pp > 1 else framework.zero_stages
    fields: dict[str, Any] = {
        "dp": rng.choice((1, 2, 4, 8, 16)),
        "tp": tp,
        "pp": pp,
        "sequence_parallel": tp > 1 and framework.sequence_parallel != "never",
        "schedule": rng.choice(schedules) if pp > 1 and schedules else "none",
        "zero_stage": rng.choice(stages or (0,)),
        "micro_batch": rng.choice(_DEGREES),
        "grad_accumulation": rng.choice((8, 8, 1, 100)),
        "recompute": rng.choice(framework.recompute),
    }
    if fields["schedule"] in ("interleaved-1f1b", *V_SHAPED):
        fields["vpp"] = 2
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        name = rng.choice(list(Layout.model_fields))
        fields[name] = rng.choice((*_LARGE, *OFFLOAD, *RECOMPUTE, True, odd_value(rng)))
    return fields


def random_workload(rng: random.Random, layout: Layout) -> dict[str, Any]:
    """Draw the fields of a workload for a layout, sometimes odd values."""
    fields: dict[str, Any] = {
        "sequence_length": rng.choice((1, 128, 512, 512, 1024, 1024, 1_000_000)),
        "global_batch": min(layout.global_batch, 10**6),
        "precision": rng.choice(("bf16", "bf16", "fp32", "fp32", *PRECISIONS)),
        "optimizer": rng.choice(OPTIMIZERS),
        "attention": rng.choice(ATTENTIONS),
    }
    if rng.random() < 0.2:
        fields["lora_rank"] = rng.choice((1, 16, 65_536))
    if rng.random() < 0.2:
        fields["frozen"] = rng.choice((("embedding",), ("layers",), ("embedding", "head")))
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        fields[rng.choice(list(Workload.model_fields))] = odd_value(rng)
    return fields


def random_overrides(rng: random.Random, machine: str) -> tuple[str, ...]:
    """Draw overrides of a machine's figures, mostly none."""
    if rng.random() < 0.8:
        return ()
    data = tomllib.loads((catalogue_folder("machine") / f"{machine}.toml").read_text("utf-8"))
    keys = [f"{a}.{b}" for a, table in data.items() if isinstance(table, dict) for b in table]
    values = ("0", "1", "-1", "2", "0.5", "80GB", "1e300", "nan", "[1]", "x", "1e-12", "40GiB")
    return tuple(
        f"{rng.choice(keys)}={rng.choice((*values, '9' * 5000, str(odd_number(rng))))}"
        for _ in range(rng.choice((1, 1, 2)))
    )


def layouts(rng: random.Random, folder: Path) -> None:
    """Estimate one layout, or plan a few nodes, with the functions of the package."""
    model = planner.load_model(rng.choice(MODELS))
    machine = rng.choice(MACHINES)
    place = planner.load_machine(machine, random_overrides(rng, machine))
    framework = planner.load_framework(rng.choice(names("framework")))
    layout = Layout.described(random_layout(rng, framework))
    workload = Workload.described(random_workload(rng, layout))
    if rng.random() > 0.02:
        check_estimate(
            planner.estimate(
                model, place, layout, workload=workload, framework=rng.choice((framework, None))
            )
        )
        return
    found = planner.plan(
        model,
        place,
        nodes=rng.choice((1, 2, 3, 4, 16, 0, -1, 10**9)),
        workload=workload,
        frameworks=[framework],
        top=rng.choice((-3, 0, 1, 20)),
    )
    for ranked in found.ranked:
        check_estimate(ranked)
    check_finite(json.loads(found.to_json()))


# --- catalogue files ----------------------------------------------------------------------------

_LAYOUTS = (
    Layout(),
    Layout(dp=2, zero_stage=1, grad_accumulation=2),
    Layout(dp=4, zero_stage=3, recompute="full"),
    Layout(dp=2, tp=2, sequence_parallel=True, recompute="selective"),
    Layout(pp=2, grad_accumulation=4, schedule="1f1b"),
    Layout(dp=4, zero_stage=2),
)


def _estimated(rng: random.Random, model: Any, machine: Any, framework: Any) -> None:
    layout = rng.choice(_LAYOUTS)
    job = Workload(sequence_length=512, global_batch=layout.global_batch)
    if framework is not None or rng.random() < 0.8:
        check_estimate(
            planner.estimate(model, machine, layout, workload=job, framework=framework or "fsdp2")
        )
    else:
        found = planner.plan(model, machine, nodes=1, workload=job, frameworks=["fsdp2"], top=3)
        for ranked in found.ranked:
            check_estimate(ranked)


_VALUE = re.compile(r"= *([^\s,{}\[\]#]+)")


def toml(value: Any) -> str:
    """Format a value as TOML; None becomes an empty table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list):
        return "[{}]" if value else "{}"
    return json.dumps(value) if isinstance(value, str) else str(value or 0)


def catalogue(rng: random.Random, folder: Path) -> None:
    """Estimate with a corrupted file of a model, a machine or a framework."""
    kind = rng.choice(("model", "machine", "framework", "framework"))
    text = (catalogue_folder(kind) / f"{rng.choice(names(kind))}.toml").read_text("utf-8")
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        found = rng.choice(list(_VALUE.finditer(text)))
        text = text[: found.start(1)] + toml(odd_value(rng)) + text[found.end(1) :]
    if rng.random() < 0.15:
        text = garbled(rng, text)
    path = written(rng, folder, "own.toml", text)
    if kind == "model":
        _estimated(rng, planner.load_model(path), "dgx-h100", None)
    elif kind == "machine":
        _estimated(rng, "gpt2", planner.load_machine(path), None)
    else:
        _estimated(rng, "llama-3-8b", "dgx-h100", planner.load_framework(path))


# --- config.json --------------------------------------------------------------------------------

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 320,
    "max_position_embeddings": 2048,
    "num_key_value_heads": 2,
    "n_embd": 64,
    "n_layer": 4,
    "n_head": 8,
    "n_positions": 2048,
    "ffn_dim": 160,
    "d_model": 64,
    "d_kv": 8,
    "d_ff": 160,
    "num_layers": 4,
    "num_heads": 8,
    "image_size": 224,
    "patch_size": 16,
    "moe_intermediate_size": 48,
    "num_experts": 8,
    "num_local_experts": 8,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}


def configs(rng: random.Random, folder: Path) -> None:
    """Estimate with a corrupted Hugging Face config.json."""
    data: Any = {**_SIZES, "model_type": rng.choice(sorted(FAMILIES))}
    if rng.random() < 0.1:
        data = {"model_type": rng.choice(("llava", "gemma3", "x")), "text_config": data}
    if rng.random() < 0.9:
        data = changed(rng, data)
    text = json.dumps(data)
    if rng.random() < 0.3:
        text = garbled(rng, text)
    model = planner.load_model(written(rng, folder, "config.json", text))
    if model.num_params < 1:
        raise Odd(f"{model.num_params} parameters")
    _estimated(rng, model, "dgx-h100", None)


# --- measurements -------------------------------------------------------------------------------

_RUNS = (
    (_ROOT / "planner" / "app" / "views" / "runs" / "example_runs.csv")
    .read_text("utf-8")
    .splitlines()
)


def runs(rng: random.Random, folder: Path) -> None:
    """Run `backtest` on a corrupted table of measured runs."""
    header, rows = _RUNS[0].split(","), [line.split(",") for line in rng.sample(_RUNS[1:], 2)]
    for row in rows:
        for _ in range(rng.choice((0, 1, 1, 2))):
            row[rng.randrange(len(row))] = str(odd_value(rng))
    if rng.random() < 0.3:
        gone = rng.randrange(len(header))
        for row in (header, *rows):
            del row[gone : gone + 1]
    text = "\n".join(",".join(row) for row in (header, *rows))
    if rng.random() < 0.3:
        text = garbled(rng, text)
    ask(["backtest", written(rng, folder, "runs.csv", text), "--json"])


_NCCL = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on  x3004 device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid  2 on  x3005 device  0 [0x07] NVIDIA A100
           0             0     float     sum      -1     5.00    0.00    0.00      0
     1048576        262144     float     sum      -1    176.0    5.96   10.43      0
  1073741824     268435456     float     sum      -1    52079   20.62   36.08      0
"""
_COLLECTIVES = "collective,nodes,size_bytes,time_us\nAllGather,2,1024,30\nallreduce,2,1048576,300\n"


def nccl_tests(rng: random.Random, folder: Path) -> None:
    """Run `collectives --against` on corrupted nccl-tests output or a table of collectives."""
    text = rng.choice((_NCCL, _NCCL, _COLLECTIVES))
    if rng.random() < 0.6:
        separator = "," if text is _COLLECTIVES else " "
        lines = [line.split(separator) for line in text.splitlines()]
        line = rng.choice(lines)
        line[rng.randrange(len(line))] = str(odd_value(rng))
        text = "\n".join(separator.join(line) for line in lines)
    if rng.random() < 0.5:
        text = garbled(rng, text)
    if rng.random() < 0.1:
        text = text.replace(",", rng.choice(";\t|"))
    more = rng.choice(((), (), ("--nodes", str(rng.choice(_NUMBERS)))))
    path = written(rng, folder, "nccl.txt", text)
    ask(["collectives", "--machine", rng.choice(MACHINES), "--against", path, "--json", *more])


_LOGS = (
    "Tokens per iteration: 262,144\nModel size: num_params=85003776\n"
    + "".join(
        f"[2024-07-17 07:43:{i:02}][INFO][trainer:885] - step={i}0 loss=2.5 dt=0.28{i % 3} "
        "dtf=0.005 dtb=0.011 sps=14.1 sps_per_gpu=3.5 tps=920000 tps_per_gpu=230000 mfu=46.0\n"
        for i in range(1, 8)
    ),
    "".join(
        f" [2025-08-01 07:19:{i:02}] iteration {i:8d}/    5000 | consumed samples:          128 | "
        f"elapsed time per iteration (ms): 129{i}.0 | throughput per GPU (TFLOP/s/GPU): 118.7 | "
        "learning rate: 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 |\n"
        for i in range(1, 8)
    ),
    "".join(
        f"step: {10 * i} loss:  7.1 grad_norm:  1.2 memory: 47.84GiB(50.37%)  tps: 5,76{i}  "
        "tflops: 493.11  mfu: 49.84%\n"
        for i in range(1, 8)
    ),
    "".join(f"iter {10 * i}: loss 2.1, time {285 + i % 3}.00ms, mfu 45.90%\n" for i in range(1, 9)),
    "step,time_s,loss\n" + "".join(f"{i},0.28{i % 3},2.5\n" for i in range(1, 9)),
)
_JOB = {
    "model": "gpt2",
    "framework": "ddp",
    "layout": {"dp": 4, "micro_batch": 16, "grad_accumulation": 4},
    "workload": {"sequence_length": 1024, "global_batch": 256},
}


def logs(rng: random.Random, folder: Path) -> None:
    """Run `compare` on a corrupted training log and the JSON of its job."""
    text = rng.choice(_LOGS)
    if rng.random() < 0.4:
        text = numbers_replaced(rng, text)
    if rng.random() < 0.4:
        text = garbled(rng, text)
    job: Any = json.loads(json.dumps(_JOB))
    if rng.random() < 0.4:
        job = changed(rng, job)
    described = json.dumps(job)
    if rng.random() < 0.1:
        described = garbled(rng, described)
    more = rng.choice(((), ("--model", "gpt2"), ("--seq-length", str(rng.choice(_NUMBERS)))))
    arguments = ["compare", written(rng, folder, "run.log", text), "--machine", "polaris"]
    if rng.random() < 0.85:
        arguments += ["--layout", written(rng, folder, "job.json", described)]
    ask([*arguments, "--json", *more])


def profiles(rng: random.Random, folder: Path) -> None:
    """Run `compare` on a corrupted profile of torch.profiler."""
    spans = [
        {"ph": "X", "cat": category, "name": name, "ts": i * 1e6 + begin, "dur": length}
        for i in range(6)
        for category, name, begin, length in (
            ("user_annotation", f"ProfilerStep#{i}", 0, 1e6),
            ("kernel", "gemm", 0, 6e5),
            ("kernel", "ncclDevKernel_AllReduce", 5e5, 3e5),
        )
    ]
    data: Any = {"schemaVersion": 1, "distributedInfo": {"world_size": 4}, "traceEvents": spans}
    text = json.dumps(changed(rng, data))
    if rng.random() < 0.2:
        text = garbled(rng, text)
    profile = written(rng, folder, "trace.json", text)
    job = written(rng, folder, "job.json", json.dumps(_JOB))
    ask(["compare", profile, "--machine", "polaris", "--layout", job, "--json"])


def sweeps(rng: random.Random, folder: Path) -> None:
    """Run `sweep` on a corrupted file of questions."""
    data: Any = {
        "models": ["gpt2"],
        "machines": ["laptop"],
        "nodes": [1],
        "workload": {"sequence_length": [128], "global_batch": [8]},
    }
    if rng.random() < 0.7:
        data = changed(rng, data)
    text = json.dumps(data)
    if rng.random() < 0.3:
        text = garbled(rng, text)
    ask(["sweep", written(rng, folder, "sweep.json", text), "--backend", "sequential"])


# --- configuration files -------------------------------------------------------------------------

_RECIPES = ("deepspeed", "accelerate", "fsdp2", "megatron-lm", "nanotron", "megatron-deepspeed")


@functools.cache
def _emitted(framework: str) -> dict[str, str]:
    """Return the files that `planner emit` writes for a small job."""
    with tempfile.TemporaryDirectory() as folder:
        job = ["gpt2", "-m", "polaris", "--nodes", "1", "--seq-length", "1024"]
        ask(["emit", *job, "--framework", framework, "-o", folder])
        files = (path for path in Path(folder).rglob("*") if path.suffix != ".md")
        return {path.name: path.read_text("utf-8") for path in files if path.is_file()}


def configurations(rng: random.Random, folder: Path) -> None:
    """Run `estimate --from` on a corrupted configuration file of a framework."""
    files = _emitted(rng.choice(_RECIPES))
    name = rng.choice(sorted(files))
    text = files[name]
    if name.endswith(".json") and rng.random() < 0.5:
        text = json.dumps(changed(rng, json.loads(text)))
    elif rng.random() < 0.5:
        found = list(re.finditer(r"[:=] *([\w.]+)", text))
        if found:
            at = rng.choice(found)
            text = text[: at.start(1)] + str(odd_value(rng)) + text[at.end(1) :]
    if rng.random() < 0.5:
        text = garbled(rng, text)
    path = written(rng, folder, name, text)
    ask(["estimate", "gpt2", "-m", "polaris", "--nodes", "1", "--from", path, "--json"])


# --- the command line ----------------------------------------------------------------------------

_COMMANDS = (
    "estimate gpt2 -m polaris --dp 4 --tp 1 --micro-batch 2 --zero 1 --json",
    "estimate llama-3-8b -m aurora --nodes 1 --tp 2 --pp 2 --recompute full --framework fsdp2",
    "estimate bert-large -m laptop --seq-length 128 --csv",
    "plan gpt2 -m laptop --global-batch 8 --seq-length 128 --top 2 --json",
    "models",
    "machines --json",
    "frameworks",
    "show polaris",
    "show gpt2 --json",
    "collectives -m polaris --nodes 2 --size 64MiB --json",
    "emit gpt2 -m polaris --nodes 1 --framework ddp -o out --force",
)
_WORDS = (
    *("--json", "--csv", "--top", "--set", "device.memory_bytes=1GB", "--help", "-m", "--nodes"),
    *("--tokens", "300B", "--dp", "0", "-1", "99999999999999999999", "1e9", "nan", "", "--", "-x"),
    *(
        "\x1b[0m",
        "../..",
        "/dev/null",
        "/",
        ".",
        "=",
        "a=b",
        "--lora-rank",
        "8",
        "--frozen",
        "head",
    ),
    *("--offload", "all-cpu", "9" * 5000, "--precision", "fp8", "x" * 10_000, "--vpp", "2", "{}"),
)
_SLOW = ("app", "validate", "calibrate")
"""Commands that are skipped: they start programs or measure."""


def commands(rng: random.Random, folder: Path) -> None:
    """Run a command line with words removed, inserted, replaced or swapped."""
    words = rng.choice(_COMMANDS).split()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randint(0, len(words))
        how = rng.random()
        if how < 0.3 and at < len(words):
            del words[at]
        elif how < 0.6:
            words.insert(at, rng.choice(_WORDS))
        elif at < len(words):
            words[at] = rng.choice((*_WORDS, str(odd_value(rng)), str(odd_number(rng))))
    if not set(words) & set(_SLOW):
        ask(words)


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "layouts": layouts,
    "catalogue": catalogue,
    "configs": configs,
    "runs": runs,
    "nccl-tests": nccl_tests,
    "logs": logs,
    "profiles": profiles,
    "sweeps": sweeps,
    "configurations": configurations,
    "commands": commands,
}
