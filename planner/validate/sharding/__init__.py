"""Sharding: models under torch's own parallelisms, and recorders of their bytes."""
