"""Entry point of `python -m planner`."""

from planner.cli.program import main

main()
