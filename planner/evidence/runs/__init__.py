"""Runs: rows of a table of measured runs, read as runs that can be estimated."""
