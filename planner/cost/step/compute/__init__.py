"""Compute time of products, attention and memory-bound kernels on one device."""
