"""Figures: plotly figures of plans, estimates and machines, with text alternatives."""
