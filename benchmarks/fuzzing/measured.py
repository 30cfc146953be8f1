"""Measured: logs, tables of steps, profiles, runs, collectives, and fits to them."""

from __future__ import annotations

import functools
import json
import random
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import planner
from fuzzing.checks import Odd, check_estimate, check_finite, check_refusal
from fuzzing.mutations import changed, edited, everywhere, near, odd_value
from fuzzing.reader import ROOT, Reader, write
from planner import PlannerError
from planner.app.controls.drop import query_of
from planner.app.controls.page_job import PageJob
from planner.describe.workload import Workload
from planner.evidence.backtest import score
from planner.evidence.calibration import calibrate, write_profile
from planner.evidence.learning import learn
from planner.evidence.links import fit_links, write_links
from planner.evidence.logs.comparison import compare, comparison_dict, comparison_text
from planner.evidence.logs.log_job import read_job
from planner.evidence.nccl_tests import read_measured
from planner.evidence.nccl_tests import score as score_collectives
from planner.evidence.recognition import Recognised, recognise
from planner.evidence.runs.run import Run
from planner.evidence.runs.run_files import run_compared, run_of_comparison, runs_from_text

# --- logs -----------------------------------------------------------------------------------------


def _steps(line: str, head: str = "", tail: str = "") -> str:
    lines = (line.format(i=i, j=8 * i, t=280 + i % 3, s=28 + i % 3) for i in range(1, 9))
    return head + "\n".join(lines) + "\n" + tail


_LOGS = (
    _steps(
        "[2024-07-17 07:43:0{i}][INFO][trainer:885] - step={i}0 loss=2.5 dt=0.{t} dtf=0.005 "
        "dtb=0.011 sps=14.1 sps_per_gpu=3.5 tps=920000 tps_per_gpu=230000 mfu=46.0",
        "[0/4] Using device='cuda' with backend='DDP' + 'nccl'\nTokens per iteration: 262,144\n",
    ),
    _steps("iter {i}0: loss 2.1, time {t}.00ms, mfu 45.90%"),
    _steps(
        "step    {i}/100 | loss 7.601543 (+0.21z)| norm 1.9 (-0.1z)| lr 1.00e-04 | {t}.12 ms | "
        "46.2% bf16 MFU | 524123 tok/s"
    ),
    _steps(
        "step 0000{i}/21400 (0.05%) | loss: 9.1 | lrm: 1.00 | dt: {t}.03ms | tok/sec: 503,621 | "
        "bf16_mfu: 47.30"
    ),
    _steps(
        "[INFO|DP=0]: iteration: {i} / 15 | consumed_tokens: 1.02K | time_per_iteration_ms: "
        "1.2{i}K | tokens_per_sec: 43.2K | tokens_per_sec_per_gpu: 5.4K | lm_loss: 5.29"
    ),
    _steps(
        " [2025-08-01 07:19:0{i}] iteration {i:8d}/    5000 | consumed samples:          128 | "
        "elapsed time per iteration (ms): 12{t}.0 | throughput per GPU (TFLOP/s/GPU): 118.7 | "
        "learning rate: 6.976744E-08 | global batch size:   128 | lm loss: 1.043863E+01 |",
        "[Rank 0] (after 2 iterations) memory (MB) | allocated: 4806.14 | max allocated: 7116.5 | "
        "reserved: 7724.0 | max reserved: 7724.0\n",
    ),
    _steps(
        "\x1b[31mstep: {i}0  \x1b[32mloss:  7.1  grad_norm:  1.2  memory: 27.84GiB(50.37%)  "
        "tps: 5,76{i}  tflops: 193.11  mfu: 49.84%\x1b[39m"
    ),
    _steps(
        "Training epoch 0, iteration {i}/249 | lr: 1.9e-06 | global_batch_size: 8 | global_step: "
        "{i} | reduced_train_loss: 1.3 | train_step_timing in s: 2.{t}"
    ),
    _steps("\t Train throughput/batches_per_sec: 0.4{i}00"),
    _steps(
        "Epoch 1 | iter {j} step {i} | loss train: 9.1, val: n/a | iter time: 125.00 ms (step) "
        "remaining time: 1 day"
    ),
    _steps(
        "Step {i} | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:4096.5 peak_memory_active:17.2 "
        "peak_memory_alloc:17.25 peak_memory_reserved:19.5"
    ),
    _steps("{{'loss': 1.2, 'grad_norm': 0.5, 'tokens_per_second_per_gpu': 95{i}.5, 'epoch': 0.1}}"),
    _steps(
        "[2023-11-07 01:55:23,714] [INFO] epoch=0/micro_step=40/global_step={i}, "
        "RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec={s}.2, MemAllocated=4.32GB, "
        "MaxMemAllocated=18.49GB\n[Rank 0] time (ms) | fwd: 250.0 | bwd: 700.0 | bwd_inner: 600.0 "
        "| bwd_allreduce: 100.0 | step: 50.0"
    ),
    _steps(
        "100%|#####| 690/690 [31:31<00:00,  2.27s/it]",
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n",
        "{'train_runtime': 1891.9, 'train_samples_per_second': 5.8, 'train_steps_per_second': "
        "0.365, 'train_loss': 0.31, 'epoch': 3.0}\n",
    ),
    _steps(" 10%|#         | {i}/100 [00:20<03:00,  2.0{i}s/it]"),
)
_TABLES = (
    "step,time_s,loss\n" + "".join(f"{i},0.28{i % 3},2.5\n" for i in range(1, 9)),
    "iteration;dt_ms;tokens_per_s\n" + "".join(f"{i};28{i}.5;1000{i}\n" for i in range(1, 9)),
    "".join(json.dumps({"step": i, "time_s": 0.28, "loss": 2.0}) + "\n" for i in range(1, 9)),
)
_CHATTER = (
    "# OSU MPI Allreduce Latency Test v7.3",
    "1048576               412.87",
    "#bytes  #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]  stddev[%]",
    "WARNING: caf\xe9 \u6f22\u5b57 \U0001f600",
    "step=nan loss=nan dt=nan",
    "iter 5: loss 1.0, time -3.00ms, mfu 5%",
    "Traceback (most recent call last):",
    "srun: error: node-1: task 3: Out Of Memory",
    "NCCL INFO Channel 00/08 :    0   1   2   3",
    "Total number of parameters: 123456789",
    "world_size: 4",
    '{"a": [1, 2, {"b": null}]}',
)


@functools.cache
def _page_job() -> PageJob:
    workload = Workload(sequence_length=1024, global_batch=64)
    polaris = planner.load_machine("polaris")
    return PageJob(planner.load_model("gpt2"), polaris, nodes=1, workload=workload)


_JOB = {
    "model": "gpt2",
    "framework": "ddp",
    "layout": {"dp": 4, "micro_batch": 16},
    "workload": {"sequence_length": 1024, "global_batch": 64},
}


def _change_log(rng: random.Random, base: tuple[str, dict], mild: float) -> tuple[Any, dict]:
    text, job = base
    if rng.random() < 0.15:
        return text, changed(rng, job, mild)
    if rng.random() < 0.4:
        text = everywhere(rng, text)
    return edited(rng, text, mild, _CHATTER), job


_COMPARED = 50
"""One log in so many is compared and explained, which takes longer than all else."""


def _use_log(base: tuple[str, dict], folder: Path) -> None:
    """Recognise a dropped log, fill the page's job, compare, explain, learn."""
    text, job = base
    read = recognise(text.encode("utf-8", "replace"), "run.log")
    if read.kind != "log":
        raise PlannerError(f"read as {read.title}: give a log")
    query_of([read], _page_job())
    check_finite(read.content.facts)
    run = read_job(read.content, _page_job().machine, job)
    if len(text) % _COMPARED:
        return
    found = compare(read.content, run)
    check_estimate(found.estimate)
    check_finite(comparison_dict(found))
    if not (found.step_time_s > 0 <= found.spread_s[0] <= found.spread_s[1]):
        raise Odd(f"step time {found.step_time_s}, spread {found.spread_s}")
    if re.search(r"\bnan\b", printed := comparison_text(found)):
        raise Odd(f"comparison says nan: {printed[:200]!r}")
    run_of_comparison(found, "run.log")


LOGS = Reader(lambda: [(text, _JOB) for text in _LOGS], _change_log, _use_log, mild=0.0, share=60)
TABLES = Reader(
    lambda: [(text, _JOB) for text in _TABLES], _change_log, _use_log, mild=0.0, share=50
)

# --- profiles of torch.profiler -------------------------------------------------------------------

_SPANS = [
    {"ph": "X", "cat": category, "name": name, "ts": i * 1e6 + begin, "dur": length}
    for i in range(5)
    for category, name, begin, length in (
        ("user_annotation", f"ProfilerStep#{i}", 0, 1e6),
        ("kernel", "gemm", 0, 6e5),
        ("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 5e5, 3e5),
        ("cpu_op", "gloo:all_reduce", 5e5, 3e5),
    )
]
_PROFILE = json.dumps(
    {"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "world_size": 4},
     "traceEvents": _SPANS}
)  # fmt: skip


def _change_profile(rng: random.Random, base: tuple[str, dict], mild: float) -> tuple[Any, dict]:
    how = rng.random()
    if how < 0.4:
        return json.dumps(changed(rng, json.loads(base[0]), mild)), base[1]
    if how < 0.7:
        return everywhere(rng, base[0]), base[1]
    return edited(rng, base[0], mild), base[1]


PROFILES = Reader(lambda: [(_PROFILE, _JOB)], _change_profile, _use_log, mild=0.0, share=50)

# --- tables of runs -------------------------------------------------------------------------------

_RUNS = (ROOT / "planner/app/views/runs/example_runs.csv").read_text("utf-8").splitlines()
_Table = list[list[str]]


def _tables_of_runs() -> list[_Table]:
    rows = [line.split(",") for line in _RUNS]
    return [[rows[0], row] for row in rows[1:]]


def _change_runs(rng: random.Random, base: _Table, mild: float) -> _Table | str:
    table = [list(row) for row in base]
    is_mild = rng.random() < mild
    for _ in range(rng.choice((1, 1, 2, 3))):
        row, at = table[1], rng.randrange(len(table[0]))
        how = rng.random()
        if how < 0.7:
            cell = row[at]
            number = int(cell) if cell.isdecimal() else cell
            row[at] = str(near(rng, number) if is_mild else odd_value(rng))
        elif how < 0.8:
            table.append(list(row))
        elif how < 0.9:
            to = rng.randrange(len(table[0]))
            for each in table:
                if max(at, to) < len(each):
                    each[at], each[to] = each[to], each[at]
        else:
            for each in table:
                del each[at : at + 1]
            break
    text = "\n".join(",".join(row) for row in table)
    if rng.random() < 0.3:
        text = edited(rng, text, mild)
    if rng.random() < 0.1:
        text = text.replace(",", rng.choice(";\t"))
    return text


def _use_runs(base: _Table | str, folder: Path) -> None:
    """Score a table, and learn from it; a table of which no row is read is refused."""
    text = base if isinstance(base, str) else "\n".join(",".join(row) for row in base)
    result = score(runs_from_text(text, "runs.csv"))
    for row in result.refused:
        check_refusal(row.reason)
    if not result.scores:
        raise PlannerError(result.refused[0].reason if result.refused else "no row: give one")
    for item in result.scores:
        check_estimate(item.estimate)
    check_finite(result.to_json())
    if len(text) % 8 == 0:  # slower than all else
        check_finite(learn(item.run for item in result.scores).records("runs"))


RUNS = Reader(_tables_of_runs, _change_runs, _use_runs, mild=0.6, share=45)


def _use_fit(base: _Table | str, folder: Path) -> None:
    """Calibrate a profile on a table, write it and estimate with it."""
    text = base if isinstance(base, str) else "\n".join(",".join(row) for row in base)
    output = folder / "fitted.toml"
    fitted = calibrate(Path(write(folder, "runs.csv", text)), "selene")
    if not (0 < fitted.sustained_fraction <= 1 and fitted.num_runs >= 1):
        raise Odd(f"sustained_fraction {fitted.sustained_fraction} of {fitted.num_runs} runs")
    check_finite(asdict(fitted))
    write_profile(fitted, "selene", output, "runs.csv")
    _estimate_on(str(output))


def _estimate_on(machine: str) -> None:
    job = Workload(sequence_length=512, global_batch=4)
    loaded = planner.load_machine(machine)
    check_estimate(planner.estimate("gpt2", loaded, planner.Layout(dp=4), workload=job))


CALIBRATIONS = Reader(_tables_of_runs, _change_runs, _use_fit, mild=0.6, share=1)

# --- collectives ----------------------------------------------------------------------------------

_HEAD = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824
# Collective test starting: {name}_perf
#  Rank  0 Group  0 Pid  1 on  n3071-001 device  0 [0x07] NVIDIA A100
#  Rank  1 Group  0 Pid  2 on  n3071-001 device  1 [0x08] NVIDIA A100
#  Rank  2 Group  0 Pid  3 on  n3071-002 device  0 [0x07] NVIDIA A100
#  Rank  3 Group  0 Pid  4 on  n3071-002 device  1 [0x08] NVIDIA A100
#       size         count      type   redop    root     time   algbw   busbw #wrong
           8             2     float     sum      -1     48.00    0.00    0.00      0
     1048576        262144     float     sum      -1    176.00    5.96   10.43      0
   268435456      67108864     float     sum      -1  44739.20    6.00    9.00      0
  1073741824     268435456     float     sum      -1 178957.00    6.00    9.00      0
"""
_COLLECTIVES = (
    _HEAD.format(name="all_reduce"),
    _HEAD.format(name="all_gather"),
    "collective,nodes,size_bytes,time_us\nAllGather,2,1024,30\nallreduce,2,268435456,44739.2\n"
    "reduce_scatter,2,1073741824,178957\n",
    "collective;nodes;ranks;size_bytes;time_us\nallreduce;2;4;268435456;44739.2\n",
)


def _use_collectives(text: str, folder: Path) -> None:
    path = Path(write(folder, "nccl.txt", text))
    rows, refused = read_measured(path, planner.load_machine("vsc-5"))
    for reason in refused:
        check_refusal(f"line; {reason}")
    for row in rows:
        if not (row.estimated_s > 0 < row.time_s):
            raise Odd(f"{row}")
        check_finite({**asdict(row), "ranks": row.ranks or 0, "error": row.error})
    for line in score_collectives(rows):
        check_finite(line._asdict())


def _change_collectives(rng: random.Random, text: str, mild: float) -> str:
    if rng.random() < 0.3:
        text = everywhere(rng, text)
    if rng.random() < 0.5:
        separator = "," if "," in text else ";" if ";" in text else " "
        lines = [line.split(separator) for line in text.split("\n")]
        line = rng.choice(lines)
        line[rng.randrange(len(line))] = str(odd_value(rng))
        return "\n".join(separator.join(line) for line in lines)
    return edited(rng, text, mild, _CHATTER)


COLLECTIVES = Reader(
    lambda: _COLLECTIVES, _change_collectives, _use_collectives, mild=0.0, share=150
)


def _use_links(text: str, folder: Path) -> None:
    """Fit the links of a profile to collectives, write it and estimate with it."""
    output = folder / "links.toml"
    fitted = fit_links(Path(write(folder, "nccl.txt", text)), planner.load_machine("vsc-5"))
    check_finite([fitted.error_before, fitted.error_after])
    write_links(fitted, "vsc-5", output)
    _estimate_on(str(output))


LINKS = Reader(lambda: _COLLECTIVES, _change_collectives, _use_links, mild=0.0, share=2)

# --- printed comparisons --------------------------------------------------------------------------


@functools.cache
def _printed() -> tuple[str, ...]:
    read = recognise(_LOGS[0].encode(), "run.log").content
    found = compare(read, read_job(read, _page_job().machine, _JOB))
    return (json.dumps(comparison_dict(found)),)


def _change_printed(rng: random.Random, text: str, mild: float) -> str:
    if rng.random() < 0.8:
        return json.dumps(changed(rng, json.loads(text), mild))
    return edited(rng, text, mild)


def _use_printed(text: str, folder: Path) -> None:
    read = recognise(text.encode("utf-8", "replace"), "compared.json")
    if not isinstance(read, Recognised) or read.kind != "comparison":
        raise PlannerError(f"read as {read.title}: give a comparison")
    run = run_compared(read.content, "compared.json", _page_job().machine, _page_job().model)
    if not isinstance(run, Run):
        check_refusal(run.reason)
        raise PlannerError(run.reason)
    check_finite(learn([run]).records("runs"))


COMPARISONS = Reader(_printed, _change_printed, _use_printed, mild=0.4, share=35)
