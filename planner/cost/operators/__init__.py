"""Operators: computation and saved tensors of each block."""
