"""App: the explorer's pages. They read widgets, call the planner and draw `planner.show.figures`.

Importing this package loads Streamlit and plotly; nothing else in the planner does.
"""

from planner.app.main import main

__all__ = ["main"]
