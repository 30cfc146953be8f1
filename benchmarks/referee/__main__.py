"""Worker for one code: `python -m benchmarks.referee CODE` reads and writes JSON lines."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings


def main() -> None:
    """Run the case on each line of standard input, and print its result or error as JSON."""
    warnings.simplefilter("ignore")
    # output of third-party code must not mix with the answers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    code = importlib.import_module(f"benchmarks.referee.{sys.argv[1]}")
    for line in sys.stdin:
        try:
            answer = code.run(json.loads(line))
        except Exception as error:  # third-party code: any error is an answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
