"""Figures: plans, estimates and machines in plotly, with text alternatives; no Streamlit here."""
