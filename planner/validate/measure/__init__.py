"""Measure: this machine's kernels and collectives, and how quiet it was, as a profile."""
