"""Tracer: a worker process that traces one step or module after the other; also its program."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import warnings
from typing import Any, Self

from planner.errors import PlannerError


class TraceError(PlannerError):
    """torch could not run the traced step."""


class Tracer:
    """Worker process, started by the first request and ended with the `with` block."""

    def __init__(self, limit_s: float = 900.0) -> None:
        self._limit_s = limit_s
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()
        self._errors.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the worker; return its answer. Raises TraceError if it fails."""
        worker = self._worker()
        assert worker.stdin is not None
        assert worker.stdout is not None
        late = threading.Event()

        def stop() -> None:
            late.set()
            worker.kill()

        timer = threading.Timer(self._limit_s, stop)
        timer.start()
        try:
            worker.stdin.write(json.dumps(request) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise TraceError(self._why(late.is_set()))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TraceError(answer["error"])
        return answer

    def _worker(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "planner.validate.trace.tracer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        return self._process

    def _why(self, late: bool) -> str:
        """End the worker. Returns the reason for its failure."""
        self._end()
        if late:
            limit = f"{self._limit_s:.0f} s"
            return f"the traced step took longer than {limit}; trace fewer micro-batches"
        self._errors.seek(0)
        # torch puts the rank before every line
        output = re.sub(r"\[rank\d+\]: ?", "", self._errors.read())
        reason = (output.strip().splitlines() or ["no message"])[-1]
        self._errors.seek(0)
        self._errors.truncate()
        return (
            f"torch failed in the traced step ({reason[:300]}); "
            "try a smaller layout, and report it with the layout"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # it ended before it read everything
                    pipe.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from planner.validate.sharding import adapter

    version = adapter.require_torch()
    if "module" in request:
        from planner.validate.trace.module_trace import trace_file

        return trace_file(request["module"], request["function"], request["said"])
    if "code" in request:
        return dict(importlib.import_module(request["code"]).run(request))
    from planner.validate.trace.step import measure

    return {**measure(request), "torch": version}


def main() -> None:
    """Answer every request line; a PlannerError is returned as `error`."""
    warnings.simplefilter("ignore")
    # torch's own prints must not mix with the answers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        try:
            answer = _answer(json.loads(line))
        except PlannerError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
