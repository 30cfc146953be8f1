"""Tracer: what its worker answers, and why it did not."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from planner.errors import LayoutError
from planner.validate.trace import module_trace, step, tracer
from planner.validate.trace.tracer import TraceError, Tracer


class _Worker:
    """A process that says one line, and takes what it is asked."""

    def __init__(self, said: str) -> None:
        self.stdin, self.stdout, self.asked = self, io.StringIO(said), ""

    def write(self, text: str) -> None:
        self.asked += text

    def flush(self) -> None:
        if "break" in self.asked:
            raise BrokenPipeError

    def close(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def wait(self, *_: Any) -> int:
        return 0


def _asked(said: str, request: dict[str, Any], errors: str = "") -> dict[str, Any]:
    with Tracer() as asking:
        asking._process = _Worker(said)  # type: ignore[assignment]
        asking._errors.write(errors)
        return asking.ask(request)


def test_an_answer_is_a_line_of_json() -> None:
    assert _asked('{"peak": 3}\nmore', {"a": 1}) == {"peak": 3}
    with pytest.raises(TraceError, match="tp = 3 is odd"):
        _asked('{"error": "tp = 3 is odd"}\n', {})


@pytest.mark.parametrize(
    ("errors", "reason"),
    [
        ("", r"\(no message\)"),
        ("[rank0]: Traceback\n[rank0]: ValueError: no\n\n", r"\(ValueError: no\)"),
    ],
)
def test_a_worker_that_ends_is_quoted(errors: str, reason: str) -> None:
    words = f"torch failed in the traced step {reason}; try a smaller layout"
    for request in ({}, {"break": True}):
        with pytest.raises(TraceError, match=words):
            _asked("", request, errors)


def test_a_worker_that_takes_too_long_is_ended() -> None:
    asking = Tracer(30.0)
    assert asking._why(late=True) == (
        "the traced step took longer than 30 s; trace fewer micro-batches"
    )
    asking._errors.close()


def test_requests_go_to_what_traces_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_trace, "trace_file", lambda *told: {"file": told})
    monkeypatch.setattr(step, "measure", lambda request: {"step": request["x"]})
    request = {"module": "/a/b.py", "function": "small", "said": "b.py"}
    assert tracer._answer(request) == {"file": ("/a/b.py", "small", "b.py")}
    assert tracer._answer({"code": f"{__name__}", "x": 4}) == {"run": 4}
    import torch

    assert tracer._answer({"x": 2}) == {"step": 2, "torch": torch.__version__}


def run(request: dict[str, Any]) -> dict[str, Any]:
    """What a module of its own answers."""
    return {"run": request["x"]}


def test_the_program_answers_line_by_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answered(request: dict[str, Any]) -> dict[str, Any]:
        if request["x"] < 0:
            raise LayoutError("x is negative")
        return {"x": request["x"] + 1}

    out = tmp_path / "answers"
    monkeypatch.setattr(tracer, "_answer", answered)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"x": 1}\n{"x": -1}\n'))
    monkeypatch.setattr(tracer.os, "dup", lambda _: 0)
    monkeypatch.setattr(tracer.os, "dup2", lambda *_: None)
    monkeypatch.setattr(tracer.os, "fdopen", lambda *_: out.open("w"))
    monkeypatch.setattr(sys, "stdout", sys.__stdout__)
    tracer.main()
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == [{"x": 2}, {"error": "x is negative"}]
