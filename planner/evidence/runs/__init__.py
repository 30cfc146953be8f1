"""Runs: a row of a table of measured runs as a run that can be estimated."""
