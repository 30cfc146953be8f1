"""Sharding: what torch's own parallelisms do to a model and send."""
