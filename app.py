"""Explorer: run it with `streamlit run app.py`, `planner app` or `make app`."""

from planner.app.main import main

main()
