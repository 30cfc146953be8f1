"""Runs: pages about measured runs of the user."""
