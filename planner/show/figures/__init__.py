"""Figures: plans, estimates and machines as plotly figures, each with a text alternative.

Pure functions; nothing here knows Streamlit. Importing this package loads plotly.
"""
