"""Entry point: `python -m planner.validate trace|run|collectives|calibrate`, also for launchers."""

import os
import sys

# ranks started from here import this module again and do not need the command line
if __name__ == "__main__":
    from planner.validate.program import main
    from planner.validate.ranks.rank import is_launched

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code and is_launched():
        os._exit(code)  # a normal exit would wait for peers that are gone
    sys.exit(code)
