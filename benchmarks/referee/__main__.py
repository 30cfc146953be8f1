"""Cases of one code: `python -m benchmarks.referee CODE`, one JSON line each, in and out."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
import warnings


def main() -> None:
    """Answer every line of standard input, which describes a case, by what was found."""
    warnings.simplefilter("ignore")
    # what the codes print must not mix with the answers
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    code = importlib.import_module(f"benchmarks.referee.{sys.argv[1]}")
    for line in sys.stdin:
        try:
            answer = code.run(json.loads(line))
        except Exception as error:  # the codes are not ours: any error is an answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
