"""Entry point of `planner` and `python -m planner`."""

import os
import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it at once, also while modules are loaded."""
    signal.signal(signal.SIGINT, _end)
    try:
        from planner.cli.program import main as run
    except ImportError as error:  # of a package that the command line itself needs
        from planner.errors import WRONG_USE, package_fault

        print(f"planner: {package_fault() or error}", file=sys.stderr)
        sys.exit(WRONG_USE)
    try:
        run(end=_end)
    except SystemExit as ended:
        if ended.code:
            _leave_launcher(ended.code)
        raise


def _leave_launcher(code: str | int) -> None:
    """End a failed rank of torchrun, mpiexec or srun, which would wait for peers that are gone."""
    from planner.validate.ranks.rank import is_launched

    if is_launched():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code))


def _end(*_: object) -> None:
    os.write(2, b"planner: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
