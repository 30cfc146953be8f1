"""Collectives of every parallel axis, and the part that computation does not hide."""
