"""App: the explorer. Its pages read widgets, call the planner and draw `planner.show.figures`.

Its modules load Streamlit and plotly; nothing else in the planner does, but for the figures.
"""
