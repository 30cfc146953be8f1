"""`python -m planner.validate trace|run|collectives|calibrate`: what launchers start."""

from __future__ import annotations

import os
import sys

# ranks that are started here import this module again: they need nothing of the program
if __name__ == "__main__":
    from planner.validate.program import main
    from planner.validate.ranks.rank import is_launched

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if code and is_launched():
        os._exit(code)  # peers that are gone would be waited for at exit
    sys.exit(code)
