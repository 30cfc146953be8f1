"""Compute: time of matrix products, attention and memory-bound kernels on one device."""
