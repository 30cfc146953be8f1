"""Worker: one traced step in its own process, request and answer as JSON lines.

A trace can abort the interpreter and leaves process groups behind, so it never runs in the
caller's process. `python -m planner.validate.worker` reads requests from standard input.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

from planner.errors import PlannerError


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    from planner.layout import Layout
    from planner.model import Model
    from planner.validate import adapter
    from planner.workload import Workload

    version = adapter.require_torch()
    from planner.validate.step import measure

    result = measure(
        Model.model_validate_json(json.dumps(request["model"])),
        Layout.model_validate_json(json.dumps(request["layout"])),
        Workload.model_validate_json(json.dumps(request["workload"])),
        range(request["first_layer"], request["first_layer"] + request["num_layers"]),
        request["stage"],
        request["optimizer"],
    )
    return {**result, "torch": version}


def main() -> None:
    """Answer every request line; an error that a user can cure comes back as `error`."""
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
