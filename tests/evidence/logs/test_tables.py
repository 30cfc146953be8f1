"""Logs that are no lines of text: tables, TensorBoard events, profiles."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError, UnknownNameError
from planner.evidence.logs.comparison import compare_log
from planner.evidence.logs.log_files import read_log
from planner.evidence.logs.scalars import FIGURES, chosen_columns
from planner.evidence.logs.step_lines import FORMATS
from planner.evidence.logs.steps import LogError
from tests import ROOT
from tests.evidence.logs.texts import read_log_text


def _csv(header: str, rows: list[str]) -> str:
    return "\n".join((header, *rows)) + "\n"


def test_lightning_alternates_rows_of_training_and_validation() -> None:
    # lightning.pytorch.loggers.CSVLogger with ThroughputMonitor: blank cells, rows of both
    rows = [f"0,{i},9.{i},,{0.5 if i else 0.1}" for i in range(8)] + ["0,7,,8.8,"]
    log = read_log_text(_csv("epoch,step,train_loss,val_loss,train|batches_per_sec", rows))
    assert (log.format, log.num_steps, log.num_warmup) == ("csv", 8, 1)
    assert log.median("time_s") == pytest.approx(2.0)


def test_litgpt_counts_micro_batches() -> None:
    # 25 micro-batches of 0.2 s make one step
    rows = [f"{9.5 - i},{25 * i},{i},0,0.2" for i in range(1, 8)]
    log = read_log_text(_csv("loss,iter,step,epoch,iter_time", rows))
    assert log.median("time_s") == pytest.approx(5.0)


def test_a_clock_tells_how_long_steps_took() -> None:
    # a Weights & Biases export: every tenth step, 30 s apart
    rows = [f"{10 * i},{1_700_000_000 + 30 * i},{9.0 - i}" for i in range(8)]
    log = read_log_text(_csv("_step,_timestamp,train/loss", rows))
    assert log.median("time_s") == pytest.approx(3.0)
    assert "differences" in log.notes[0]


def test_columns_are_named_by_the_user() -> None:
    text = _csv("n;lap;loss", [f"{i};{1500 + i};2.0" for i in range(9)])
    log = read_log_text(text, columns=chosen_columns(["time_ms=lap", "step=n"]))
    assert log.median("time_s") == pytest.approx(1.5045, abs=1e-3)
    with pytest.raises(LogError, match="such as time_s=NAME: it has lap, loss, n"):
        read_log_text(text)
    with pytest.raises(UnknownNameError, match="unknown column 'lapp': did you mean lap"):
        read_log_text(text, columns={"time_s": "lapp"})
    with pytest.raises(UnknownNameError, match="unknown figure 'tims'"):
        chosen_columns(["tims=lap"])
    with pytest.raises(LogError, match="FIGURE=COLUMN"):
        chosen_columns(["lap"])


def test_a_table_has_a_limit_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.evidence.logs.scalars._MAX_ROWS", 6)
    rows, columns = [f"{i},2.0" for i in range(2, 9)], chosen_columns(["time_s=lap"])
    assert read_log_text(_csv("step,lap", rows[:6]), columns=columns).num_steps == 6
    with pytest.raises(LogError, match="over 6 rows"):
        read_log_text(_csv("step,lap", rows), columns=columns)


def test_json_lines() -> None:
    text = "\n".join(
        json.dumps({"step": i, "loss": 2.0, "tokens_per_second": 8192.0, "note": [1]})
        for i in range(8)
    )
    log = read_log_text(text)
    assert (log.format, log.median("tokens_per_s")) == ("jsonl", 8192.0)


def _events(folder: Path, scalars: dict[str, list[float]]) -> Path:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for tag, values in scalars.items():
        for step, value in enumerate(values, 1):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=1e9 + 2.5 * step, step=step, summary=summary))
    writer.close()
    return folder


def test_tensorboard_of_torchtitan(tmp_path: Path) -> None:
    _events(
        tmp_path / "run",
        {
            "time_metrics/end_to_end(s)": [30.0, 1.5, 1.5, 1.6, 1.5, 1.5],
            "throughput(tps)": [273.0, 5461, 5461, 5120, 5461, 5461],
            "mfu(%)": [2.0, 45, 45, 42, 45, 45],
            "memory/max_reserved(GiB)": [60.0, 61, 61, 61, 61, 61],
        },
    )
    log = read_log(tmp_path)
    assert (log.format, log.num_steps, log.num_warmup) == ("tensorboard", 6, 1)
    assert log.median("time_s") == pytest.approx(1.5)
    assert log.median("mfu") == pytest.approx(0.45)
    assert log.fact("reserved_bytes") == 61 * 2**30


def test_tensorboard_without_times_has_the_clock(tmp_path: Path) -> None:
    log = read_log(_events(tmp_path, {"train/loss": [9.0, 8, 7, 6, 5, 4]}))
    assert log.median("time_s") == pytest.approx(2.5)
    assert log.num_steps == 5


def test_folders_and_files_that_hold_no_events(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="is not a file"):
        read_log(tmp_path)
    broken = tmp_path / "events.out.tfevents.1.host"
    broken.write_bytes(b"nothing of the kind" * 50)
    with pytest.raises(LogError, match=r"holds no scalars|not a readable event file"):
        read_log(broken)


def _profile(path: Path, spans: list[tuple[str, str, float, float]], **more: Any) -> Path:
    events = [{"ph": "X", "cat": c, "name": n, "ts": t, "dur": d} for c, n, t, d in spans]
    data = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "M"}, *events], **more})
    path.write_bytes(gzip.compress(data.encode()) if path.suffix == ".gz" else data.encode())
    return path


def _steps(count: int) -> list[tuple[str, str, float, float]]:
    """Steps of 1 s: 0.6 s of kernels, 0.5 s of reduction of which 0.3 s run beside them."""
    spans = []
    for i in range(count):
        begin = i * 1e6
        spans += [
            ("user_annotation", f"ProfilerStep#{i}", begin, 1e6),
            ("kernel", "ampere_bf16_gemm", begin, 4e5),
            ("kernel", "elementwise", begin + 3e5, 3e5),
            ("kernel", "ncclDevKernel_ReduceScatter_Sum_bf16", begin + 3e5, 5e5),
            ("cpu_op", "aten::mm", begin, 9e5),
        ]
    return spans


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_profile_tells_what_the_device_did(tmp_path: Path, name: str) -> None:
    path = _profile(tmp_path / name, _steps(6), distributedInfo={"world_size": 8, "rank": 0})
    log = read_log(path)
    assert (log.format, log.num_steps, log.facts["world"]) == ("kineto", 6, 8)
    assert log.median("time_s") == pytest.approx(1.0)
    assert log.median("computing_s") == pytest.approx(0.6)
    assert log.median("exposed_communication_s") == pytest.approx(0.2)
    assert log.median("idle_s") == pytest.approx(0.2)
    result = compare_log(
        path, "dgx-h100", {"dp": 8}, model="gpt2", sequence_length=1024, framework="fsdp2"
    )
    parts = result.estimate.step_time_parts_s
    figures = {figure.name: figure for figure in result.figures}
    phases = ("computing_s", "exposed_communication_s", "idle_s")
    shown = sum(figures[name].estimated for name in phases if name in figures)
    assert shown == pytest.approx(sum(parts.values()), rel=1e-9)
    assert figures["computing_s"].estimated == pytest.approx(
        parts["forward"] + parts["backward"] + parts["recompute"] + parts["optimizer"]
    )


@pytest.mark.parametrize("value", [{"a": 1}, ["kernel"], None, 7, True, ""])
def test_an_event_of_any_shape_is_passed_over(tmp_path: Path, value: object) -> None:
    """What is no kernel changes nothing; `name` and `ph` of any shape, too."""
    path = _profile(tmp_path / "trace.json", _steps(6))
    plain = read_log(path)
    events = json.loads(path.read_text())
    odd = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 0, "dur": 1e6}
    events["traceEvents"] += [{**odd, "cat": value}, {**odd, "ph": value}, value]
    events["traceEvents"] += [{**odd, "ts": value}] if not isinstance(value, int) else []
    path.write_text(json.dumps({**events, "distributedInfo": value}))
    assert str(read_log(path).steps) == str(plain.steps)


@pytest.mark.parametrize(
    ("spans", "words"),
    [([], "marks no step"), ([("user_annotation", "ProfilerStep#1", 0, 0)], "none with a finite")],
)
def test_profiles_without_steps(
    tmp_path: Path, spans: list[tuple[str, str, float, float]], words: str
) -> None:
    with pytest.raises(PlannerError, match=words):
        read_log(_profile(tmp_path / "trace.json", spans))


def test_a_profile_that_was_cut_off(tmp_path: Path) -> None:
    path = _profile(tmp_path / "trace.json.gz", _steps(3))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PlannerError, match="not a complete profile"):
        read_log(path)


@pytest.mark.slow
def test_a_profile_of_torch_itself(tmp_path: Path) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule

    layer = torch.nn.Linear(64, 64)
    path = tmp_path / "trace.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=4),
        on_trace_ready=lambda p: p.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(6):
            layer(torch.randn(8, 64)).sum().backward()
            profiler.step()
    log = read_log(path)
    assert (log.format, log.num_steps) == ("kineto", 4)
    assert 0 < (log.median("time_s") or 0) < 60


def test_the_documentation_names_all_that_is_read() -> None:
    text = " ".join((ROOT / "docs" / "howto" / "own-runs.md").read_text().split())
    assert f"step lines of {', '.join(known.source.title for known in FORMATS)} |" in text
    assert f"accepts these names: {', '.join(f'`{name}`' for name in FIGURES)}." in text
