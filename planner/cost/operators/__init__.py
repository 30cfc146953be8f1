"""Operators: what a block computes and keeps."""
