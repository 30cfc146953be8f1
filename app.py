"""The explorer: `streamlit run app.py`, `planner app` or `make app`."""

from planner.app import main

main()
