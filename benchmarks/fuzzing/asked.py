"""Asked: sweeps, addresses of the explorer, and command lines."""

from __future__ import annotations

import json
import random
import urllib.parse
from pathlib import Path
from typing import Any

import planner
from fuzzing.checks import Odd, ask, check_estimate, check_finite, check_refusal
from fuzzing.mutations import TEXTS, changed, edited, near, odd_number, odd_value
from fuzzing.reader import Reader, write
from planner.app import link
from planner.app.address import QueryReader
from planner.app.controls import page_job
from planner.app.main import PAGES
from planner.describe.catalogue import folder as catalogue_folder
from planner.sweeps import dry_run

# --- sweeps ---------------------------------------------------------------------------------------

_SWEEPS: tuple[dict[str, Any], ...] = (
    {"kind": "estimate", "models": ["gpt2"], "machines": ["polaris"], "frameworks": ["ddp"],
     "workload": {"sequence_length": [128, 256]}, "layout": {"dp": [1, 4], "micro_batch": 2}},
    {"kind": "estimate", "models": ["llama-3-8b"], "machines": ["dgx-h100"], "nodes": [1],
     "frameworks": [["fsdp2"]], "sets": [[], ["device.memory_bytes=40GB"]], "leave_free": [0, 10],
     "layout": {"dp": 8, "zero_stage": 3}},
    {"kind": "estimate", "models": ["gpt2"], "machines": ["laptop"], "workload": {},
     "rows": [{"layout": {"micro_batch": [1, 2]}}, {"layout": {"grad_accumulation": 4}}]},
    {"models": ["gpt2"], "machines": ["laptop"], "nodes": [1], "frameworks": ["ddp"],
     "exact": True, "workload": {"sequence_length": [128], "global_batch": [8]}},
)  # fmt: skip
_MOST_QUESTIONS = 12


def _change_sweep(rng: random.Random, base: str, mild: float) -> str:
    if rng.random() < 0.8:
        return json.dumps(changed(rng, json.loads(base), mild))
    return edited(rng, base, mild)


def _use_sweep(text: str, folder: Path) -> None:
    """List the questions of a sweep and answer the first; a sweep without answers is refused."""
    path = write(folder, "sweep.json", text)
    questions, first = dry_run(path)
    check_finite(first)
    if not questions.questions:
        raise Odd("no questions")
    result = planner.sweep(path, backend="sequential", limit=_MOST_QUESTIONS)
    reasons = [row["error"] for row in result.rows if row["error"] is not None]
    for reason in reasons:
        check_refusal(reason)
    if len(reasons) == len(result.rows):
        raise planner.PlannerError(reasons[0])
    check_finite([dict(row) for row in result.rows])


SWEEPS = Reader(
    lambda: [json.dumps(each) for each in _SWEEPS], _change_sweep, _use_sweep, mild=0.6, share=6
)

# --- addresses of the explorer --------------------------------------------------------------------

_TOML = (catalogue_folder("machine") / "laptop.toml").read_bytes()
_CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
}
_QUERIES: tuple[dict[str, str], ...] = (
    {"model": "gpt2", "machine": "polaris", "nodes": "1", "batch": "64", "seq": "1024",
     "frameworks": "ddp", "layout": "ddp~dp.4~micro_batch.16", "tolerance": "5", "top": "20"},
    {"model": "llama-3-8b", "machine": "aurora", "nodes": "2", "precision": "bf16", "free": "10",
     "frameworks": "fsdp2,megatron-deepspeed", "switches": "fsdp2+compile", "exact": "True",
     "layout": "fsdp2+compile~dp.24~zero_stage.3"},
    {"machine": "jupiter", "network": "", "set": "device.memory_bytes=80GB\nnum_nodes=100",
     "model": "mixtral-8x7b", "batch": "64", "tokens": "1e9", "optimizer": "adamw", "page": "ask",
     "question": "nodes", "layout": "fsdp2~dp.64~zero_stage.3"},
    {"config": link.pack_own(link.read_own(json.dumps(_CONFIG).encode(), "tiny.json")),
     "machine": "laptop", "nodes": "1", "batch": "8", "seq": "128", "devices": "0",
     "layout": "ddp~micro_batch.8"},
    {"profile": link.pack_own(link.read_own(_TOML, "own.toml")), "model": "gpt2", "batch": "8",
     "seq": "256", "lora": "8", "op": "all-reduce", "ranks": "8", "apart": "1", "size": "64 MiB",
     "layout": "ddp~micro_batch.8", "pins": link.pack_pins([{"model": "gpt2", "nodes": "2"}])},
)  # fmt: skip


def _change_query(rng: random.Random, base: dict[str, str], mild: float) -> Any:
    query = dict(base)
    is_mild = rng.random() < mild
    for _ in range(rng.choice((1, 1, 2, 3))):
        other = rng.choice(_QUERIES)
        key = rng.choice((*query, rng.choice(list(other))))
        value, how = query.get(key, ""), rng.random()
        if is_mild and value.isdecimal():
            query[key] = str(near(rng, int(value)))
        elif is_mild:
            query[key] = other.get(key, value)
        elif how < 0.3:
            query[key] = str(rng.choice((odd_value(rng), odd_number(rng))))
        elif how < 0.7:
            query[key] = edited(rng, value, 0.2)
        elif how < 0.8:
            query.pop(key, None)
        else:
            query[rng.choice(TEXTS)[:50] or "x"] = str(odd_value(rng))
    encoded = urllib.parse.urlencode(query, errors="replace")
    if not is_mild and rng.random() < 0.15:
        encoded = edited(rng, encoded, 0.0)
    return dict(urllib.parse.parse_qsl(encoded, keep_blank_values=True))


def _use_query(query: dict[str, str], folder: Path) -> None:
    """Read an address as every page does, and estimate its layout; messages count as refusals."""
    reader = QueryReader(dict(query))
    request = page_job.read(reader)
    for page in PAGES.values():
        if read_query := getattr(page, "read_query", None):
            read_query(reader, request.job)
    reader.report_unknown({*reader.keys, "page"})
    for message in reader.messages:
        check_refusal(message)
    link.unpack_pins(query.get("pins", ""))
    if request.job is None:
        raise planner.PlannerError(request.problem)
    job, packed = request.job, query.get("layout", "")
    if packed:
        layout, framework = link.unpack_layout(packed)
        workload = job.workload.replaced(global_batch=layout.global_batch)
        call = planner.estimate(
            job.model, job.machine, layout, workload=workload, framework=framework
        )
        check_estimate(call)
        if link.unpack_layout(link.of(call))[0] != layout:
            raise Odd(f"layout {packed} is packed as {link.of(call)}")
    if reader.messages:
        raise planner.PlannerError(reader.messages[0])


ADDRESSES = Reader(lambda: _QUERIES, _change_query, _use_query, mild=0.5, share=60)

# --- command lines --------------------------------------------------------------------------------

_COMMANDS = (
    "estimate gpt2 -m polaris --dp 4 --tp 1 --micro-batch 2 --zero 1 --json",
    "estimate llama-3-8b -m aurora --nodes 1 --tp 2 --pp 2 --recompute full --framework fsdp2",
    "estimate bert-large -m laptop --seq-length 128 --csv",
    "simulate gpt2 -m polaris --dp 2 --pp 2 --framework megatron-lm --json",
    "plan gpt2 -m laptop --global-batch 8 --seq-length 128 --top 2 --framework ddp --json",
    "models --json",
    "machines --json",
    "frameworks",
    "datasets --json",
    "show polaris",
    "show gpt2 --json",
    "collectives -m polaris --nodes 2 --size 64MiB --json",
    "collectives aurora --ranks 24 --stride 2 --operation broadcast",
    "sweep sweep.json --backend sequential --limit 2",
)
_WORDS = (
    *("--json", "--csv", "--top", "--set", "device.memory_bytes=1GB", "--help", "-m", "--nodes"),
    *("--tokens", "300B", "--dp", "0", "-1", "99999999999999999999", "1e9", "nan", "", "--", "-x"),
    *("\x1b[0m", "../..", "/dev/null", "/", ".", "=", "a=b", "--lora-rank", "8", "--frozen"),
    *("--offload", "all-cpu", "9" * 5000, "--precision", "fp8", "x" * 10_000, "--vpp", "2", "{}"),
    *("caf\xe9", "\u0663", "-h", "--version", "--exact", "--network", "--leave-free", "100"),
)
_ADDED = (
    "--json", "--dp 2", "--micro-batch 4", "--nodes 2", "--seq-length 256", "--precision fp32",
    "--optimizer adamw", "--set device.memory_bytes=40GB", "--leave-free 10", "--zero 2",
    "--recompute selective", "--tokens 1B", "--global-batch 16",
)  # fmt: skip
_SLOW = {"app", "validate", "calibrate", "ask", "completion"}
"""Commands that are skipped: they start programs, measure, or plan many jobs."""


def _change_words(rng: random.Random, base: tuple[str, ...], mild: float) -> tuple[str, ...]:
    words = list(base)
    is_mild = rng.random() < mild
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, how = rng.randint(1, len(words)), rng.random()
        if is_mild:
            numbers = [i for i, word in enumerate(words) if word.isdecimal()]
            if numbers and how < 0.6:
                at = rng.choice(numbers)
                words[at] = str(near(rng, int(words[at])))
            elif words[0] in ("estimate", "plan", "simulate"):
                words += rng.choice(_ADDED).split()
        elif how < 0.3 and at < len(words):
            del words[at]
        elif how < 0.6:
            words.insert(at, rng.choice(_WORDS))
        elif at < len(words):
            words[at] = rng.choice((*_WORDS, str(odd_value(rng)), str(odd_number(rng))))
    return tuple(words)


def _use_words(words: tuple[str, ...], folder: Path) -> None:
    write(folder, "sweep.json", json.dumps(_SWEEPS[0]))
    if not set(words) & _SLOW:
        ask(list(words))


COMMANDS = Reader(
    lambda: [tuple(line.split()) for line in _COMMANDS], _change_words, _use_words, share=8
)
