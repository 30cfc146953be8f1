"""App: the web explorer. Its pages read widgets, call the planner, draw `planner.show.figures`."""
