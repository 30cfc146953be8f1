"""What `planner app` gives to Streamlit."""

from planner.app.main import main

main()
