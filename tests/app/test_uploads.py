"""Logs that are uploaded: every format that is compared, and files that are none of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

pytest.importorskip("streamlit")

from planner.app.views.trust import read_upload
from planner.describe.catalogue import load_machine
from planner.errors import PlannerError
from planner.evidence.logs.log_job import read_job
from planner.evidence.logs.steps import LogError

_STEPS = [
    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": 5e5 * i, "dur": 5e5}
    for i in range(6)
]
_PROFILE = json.dumps({"schemaVersion": 1, "traceEvents": _STEPS}).encode()
_LINES = "".join(f"iter {i}: loss 2.1, time 500.0ms, mfu 45.9%\n" for i in range(6)).encode()
_TABLE = b"step,time_s\n" + b"".join(b"%d,0.5\n" % i for i in range(6))
_ROWS = b"".join(b'{"step": %d, "time_s": 0.5}\n' % i for i in range(6))


@pytest.mark.parametrize(
    ("name", "data", "format_"),
    [
        ("train.log", _LINES, "nanogpt"),
        ("metrics.csv", _TABLE, "csv"),
        ("metrics.jsonl", _ROWS, "jsonl"),
        ("trace.json", _PROFILE, "kineto"),
        ("rank0.pt.trace.json.gz", gzip.compress(_PROFILE), "kineto"),
        ("../../etc/a trace", _PROFILE, "kineto"),
        ("..", _TABLE, "csv"),
    ],
)
def test_every_format_that_is_compared_can_be_uploaded(
    name: str, data: bytes, format_: str
) -> None:
    log = read_upload(data, name)
    assert (log.format, log.median("time_s")) == (format_, pytest.approx(0.5))


@pytest.mark.slow  # loads TensorBoard
def test_events_of_tensorboard_can_be_uploaded(tmp_path: Path) -> None:
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
    log = read_upload(path.read_bytes(), path.name)
    assert (log.format, log.median("time_s")) == ("tensorboard", 2.5)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("run.log", b"", "run.log is empty"),
        ("run.log", b"hello\n", "run.log"),
        ("model.safetensors", b"\x00\x01" * 40, "model.safetensors is binary"),
        ("trace.json", _PROFILE[:-20], "trace.json is not a complete profile"),
        ("trace.json.gz", gzip.compress(_PROFILE)[:-9], "trace.json.gz is not a complete profile"),
        ("odd.csv", b"a,b\n1,2\n3,4\n", r"such as time_s=NAME: it has a, b"),
        ("events.out.tfevents.1", b"nothing of the kind", r"events.out.tfevents.1 "),
    ],
)
def test_other_files_are_answered_in_one_sentence(name: str, data: bytes, words: str) -> None:
    """By the name that the user gave it; of the place where it is read nothing is said."""
    with pytest.raises(LogError, match=words) as found:
        read_upload(data, name)
    said = str(found.value)
    assert said.startswith(name)
    assert not [word for word in ("\n", "tmp/", "--") if word in said]


def test_a_log_without_a_model_is_named_as_its_user_named_it() -> None:
    with pytest.raises(PlannerError, match=r"^nano\.log does not state the model") as found:
        read_job(read_upload(_LINES, "nano.log"), load_machine("polaris"), {"dp": 4})
    assert "/" not in found.value.plain
