"""What `planner app` gives to Streamlit."""

from planner.app import main

main()
