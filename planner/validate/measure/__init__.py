"""Measure: this machine's kernels and collectives, as a profile."""
