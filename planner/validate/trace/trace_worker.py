"""Worker: one traced step or module in its own process, request and answer as JSON lines.

A trace can abort the interpreter and leaves process groups behind, so it never runs in the
caller's process. `python -m planner.validate.trace.trace_worker` reads requests from stdin.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from planner.errors import PlannerError


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from planner.validate.sharding import adapter

    version = adapter.require_torch()
    if "module" in request:
        from planner.validate.modules.module_trace import trace_file

        return trace_file(request["module"], request["function"], request["said"])
    from planner.validate.trace.step import measure

    return {**measure(*_arguments(request)), "torch": version}


def _arguments(request: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments of `measure` from a request."""
    from planner.describe.layout import Layout
    from planner.describe.model.model import Model
    from planner.describe.workload import Workload

    return (
        Model.model_validate_json(json.dumps(request["model"])),
        Layout.model_validate_json(json.dumps(request["layout"])),
        Workload.model_validate_json(json.dumps(request["workload"])),
        [range(first, first + count) for first, count in request["chunks"]],
        request["stage"],
        request["optimizer"],
        request["numbers"],
    )


def on_ranks(rank: Any, payload: dict[str, Any], send: Any) -> list[dict[str, Any]]:
    """Run the traced steps on real ranks: memory and collectives of this rank in every case.

    `payload["cases"]` lists, for every case, one request per pipeline stage.
    """
    del send
    warnings.simplefilter("ignore")
    from planner.validate.ranks.rank import joined
    from planner.validate.trace.step import measure_on_rank

    results = []
    with joined(rank):
        for number, requests in enumerate(payload["cases"], 1):
            rank.report(f"step {number} of {len(payload['cases'])}")
            stage = rank.rank * len(requests) // rank.world
            results.append(measure_on_rank(*_arguments(requests[stage])))
    return results


def main() -> None:
    """Answer every request line; errors for users come back as `error`."""
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
