"""`python -m planner.validate run|calibrate|collectives`: what torchrun, mpiexec, srun start."""

from __future__ import annotations

import os
import sys

from planner.errors import PlannerError

_COMMANDS = ("run", "collectives", "calibrate")


def main(arguments: list[str]) -> int:
    """Exit code of a command; errors of users end in one sentence on standard error."""
    command = arguments[0] if arguments else ""
    try:
        if command == "run":
            from planner.validate.train.run import main as start
        elif command == "collectives":
            from planner.validate.measure.collectives import main as start
        elif command == "calibrate":
            from planner.validate.measure.calibrate import main as start
        else:
            print(
                f"usage: python -m planner.validate {'|'.join(_COMMANDS)} ... (-h for help)",
                file=sys.stderr,
            )
            return 2
        return start(arguments[1:])
    except PlannerError as error:
        print(f"planner: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("planner: interrupted; finished cases are kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    if code and any(name in os.environ for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")):
        os._exit(code)  # peers that are gone would be waited for at exit
    sys.exit(code)
