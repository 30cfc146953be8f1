"""Measure: kernels and collectives of this node, load by other processes, and its profile."""
