"""Uncertainty: how far estimates lie from measured runs, and what measured runs teach."""
