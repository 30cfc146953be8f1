"""Entry point of `python -m planner.cli`."""

from planner.cli.program import main

main()
