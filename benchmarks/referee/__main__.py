"""One case of real code: `python -m benchmarks.referee CODE`, its description on standard input."""

from __future__ import annotations

import importlib
import json
import sys
import warnings


def main() -> None:
    """Run the case that standard input describes; print what was found as one line of JSON."""
    warnings.simplefilter("ignore")
    code = importlib.import_module(f"benchmarks.referee.{sys.argv[1]}")
    print(json.dumps(code.run(json.load(sys.stdin))))


if __name__ == "__main__":
    main()
