"""Entry point: the script that `planner app` runs in Streamlit."""

from planner.app.main import main

main()
