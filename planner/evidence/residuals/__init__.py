"""Distances of estimates from measured runs, row by row."""
