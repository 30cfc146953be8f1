"""Figures: plans, estimates and machines as plotly figures, each with a text alternative.

Pure functions; nothing here knows Streamlit. The first figure that is drawn loads plotly.
"""
