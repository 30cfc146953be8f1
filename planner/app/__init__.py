"""App: the explorer. Its pages read widgets, call the planner and draw `planner.show.figures`."""
