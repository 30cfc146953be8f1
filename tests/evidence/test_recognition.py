"""Recognition: every kind of file by its content, and others in one sentence by their name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from planner.describe.catalogue import load_machine
from planner.errors import PlannerError
from planner.evidence.logs.log_job import read_job
from planner.evidence.logs.steps import UnnamedColumnsError
from planner.evidence.recognition import recognise
from tests import ROOT

_STEPS = [
    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": 5e5 * i, "dur": 5e5}
    for i in range(6)
]
_PROFILE = json.dumps({"schemaVersion": 1, "traceEvents": _STEPS}).encode()
_LINES = "".join(f"iter {i}: loss 2.1, time 500.0ms, mfu 45.9%\n" for i in range(6)).encode()
_TABLE = b"step,time_s\n" + b"".join(b"%d,0.5\n" % i for i in range(6))
_DICTIONARIES = b"{'loss': 2.1, 'epoch': 0.1}\n{'train_steps_per_second': 2.0}\n"
"""Python's dictionaries, as the Trainer prints them: no JSON."""
_ROWS = b"".join(b'{"step": %d, "time_s": 0.5}\n' % i for i in range(6))


@pytest.mark.parametrize(
    ("name", "data", "log_format"),
    [
        ("train.log", _LINES, "nanogpt"),
        ("metrics.csv", _TABLE, "csv"),
        ("utf16.csv", _TABLE.decode().encode("utf-16"), "csv"),
        ("rates.csv", _TABLE.replace(b"time_s", b"step_time_s"), "csv"),
        ("metrics.jsonl", _ROWS, "jsonl"),
        ("trace.json", _PROFILE, "kineto"),
        ("rank0.pt.trace.json.gz", gzip.compress(_PROFILE, mtime=0), "kineto"),
        ("../../etc/a trace", _PROFILE, "kineto"),
        ("..", _TABLE, "csv"),
        ("axolotl.log", _DICTIONARIES, "huggingface"),
    ],
)
def test_every_format_of_a_log(name: str, data: bytes, log_format: str) -> None:
    log = recognise(data, name)
    assert log.kind == "log"
    assert (log.content.format, log.content.median("time_s")) == (log_format, pytest.approx(0.5))
    assert "/" not in log.content.source


_DEEPSPEED = b'{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3}}'
_CONFIG = b'{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}'
_MEGATRON = (
    b"#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 4 "
    b"--micro-batch-size 1 --global-batch-size 64 --seq-length 4096 --bf16\n"
)
_TITAN = (
    b"[training]\nlocal_batch_size = 1\nseq_len = 2048\n[parallelism]\ntensor_parallel_degree = 2\n"
)


@pytest.mark.parametrize(
    ("data", "kind", "title"),
    [
        (_DEEPSPEED, "configuration", "DeepSpeed's configuration"),
        (b"distributed_type: FSDP\nnum_processes: 16\n", "configuration", "Accelerate's"),
        (_TITAN, "configuration", "torchtitan's configuration"),
        (_MEGATRON, "configuration", "Megatron's arguments"),
        (b'{"layout": {"dp": 4}, "model": "gpt2"}', "configuration", "layout of the planner"),
        (_CONFIG, "model", "description of a model"),
        ((ROOT / "models" / "gpt2.toml").read_bytes(), "model", "description of a model"),
        ((ROOT / "hardware_profiles" / "polaris.toml").read_bytes(), "machine", "machine"),
        (b"model,n_gpus,dp,step_time_s\ngpt2,4,4,0.5\n", "runs", "CSV of runs"),
    ],
)
def test_kinds_are_told_by_content_whatever_the_name(data: bytes, kind: str, title: str) -> None:
    for name in ("run.log", "upload"):
        result = recognise(data, name)
        assert (result.kind, title in result.title) == (kind, True)


def test_a_result_of_compare_is_a_run() -> None:
    keys = ("layout", "workload", "model", "machine", "framework", "step_time_s")
    assert recognise(json.dumps(dict.fromkeys(keys, 1)).encode(), "run.json").kind == "comparison"


def test_events_of_tensorboard_are_known_by_content(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="no tensorboard: pip install '.[evidence]'")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path))
    for step in range(1, 8):
        summary = Summary(value=[Summary.Value(tag="train/loss", simple_value=2.0)])
        writer.add_event(Event(wall_time=1e9 + 2.5 * step, step=step, summary=summary))
    writer.close()
    (path,) = tmp_path.iterdir()
    log = recognise(path.read_bytes(), "downloaded").content
    assert (log.format, log.median("time_s")) == ("tensorboard", 2.5)
    assert "train/loss" in log.columns


def _packed(byte: bytes) -> bytes:
    """Ten million equal bytes in a gzip member, of which a file may have many."""
    return gzip.compress(10_000_000 * byte, 1, mtime=0)


_BOTH = b'{"model_type": "llama", "zero_optimization": {"stage": 1}}'


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("run.log", b"", "run.log is empty"),
        ("run.log", b" \n", "run.log is empty"),
        ("run.log", b"hello\n", "run.log is nothing that is read here; give a training log"),
        ("model.safetensors", b"\x00\x01" * 40, "model.safetensors is binary"),
        ("any.gz", b"\x1f\x8bjunkjunkjunk", "any.gz is binary"),
        ("bomb.gz", gzip.compress(b'{"traceEvents": [') + 31 * _packed(b" "), "over 300 MB"),
        ("zeros.gz", 40 * _packed(bytes(1)), "zeros.gz is binary"),
        ("deep.json", b"[" * 60_000, "deep.json is nothing"),
        ("deeper.json", b'{"a":' * 12_000, "deeper.json is not valid JSON"),
        ("large.json", b"[" * 20_000_000, "large.json is nothing"),
        ("keys.toml", b"a" + b".a" * 30_000 + b"=1", "keys.toml is nested too deeply"),
        ("cut.toml", b"num_nodes = ", "cut.toml is not valid TOML"),
        ("trace.json", _PROFILE[:-20], "trace.json is not a complete profile"),
        (
            "trace.json.gz",
            gzip.compress(_PROFILE, mtime=0)[:-9],
            "trace.json.gz is not a complete profile",
        ),
        ("odd.csv", b"a,b\n1,2\n3,4\n", "it has a, b"),
        ("both.csv", b"step,model,n_gpus\n1,gpt2,4\n", "has a column 'step' of a log and"),
        ("both.json", _BOTH, r"keys of a model \(model_type\) and of DeepSpeed's configuration"),
        ("events.out.tfevents.1", b"nothing of the kind", "events.out.tfevents.1 "),
        ("/home/me/run.log", b"hello\n", "home_me_run.log is nothing"),
        ("x" * 300 + ".log", b"hello\n", "x.log is nothing"),
    ],
)
def test_other_files_are_refused_in_one_sentence(name: str, data: bytes, words: str) -> None:
    """By the name that the user gave it; nothing is said of the place where it is read."""
    with pytest.raises(PlannerError, match=words) as refusal:
        recognise(data, name)
    text = refusal.value.plain
    assert "\n" not in text
    assert "/" not in text


def test_columns_without_known_names_can_be_chosen() -> None:
    data = b"a,b\n" + b"".join(b"%d,0.5\n" % i for i in range(6))
    with pytest.raises(UnnamedColumnsError) as refusal:
        recognise(data, "odd.csv")
    assert refusal.value.columns == ("a", "b")
    log = recognise(data, "odd.csv", {"time_s": "b"}).content
    assert log.median("time_s") == 0.5
    assert log.columns == ("a", "b")
    # files beside the table are read as before
    assert recognise(_DEEPSPEED, "ds.json", {"time_s": "b"}).kind == "configuration"
    runs = b"model,n_gpus,dp,step_time_s\ngpt2,4,4,0.5\n"
    assert recognise(runs, "runs.csv", {"time_s": "b"}).kind == "runs"


def test_a_log_without_a_model_is_named_as_its_user_named_it() -> None:
    log = recognise(_LINES, "nano.log").content
    with pytest.raises(PlannerError, match=r"^nano\.log does not state the model") as refusal:
        read_job(log, load_machine("polaris"), {"dp": 4})
    assert "/" not in refusal.value.plain
