"""Runs: measured runs, read from the rows of a table so that they can be estimated."""
