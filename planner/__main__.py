"""Entry point of `planner` and `python -m planner`."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line; Ctrl-C ends it at once, also while modules are loaded."""
    signal.signal(signal.SIGINT, _end)
    from planner.cli.program import main as run

    run(owns_signals=True)


def _end(*_: object) -> None:
    os.write(2, b"planner: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
