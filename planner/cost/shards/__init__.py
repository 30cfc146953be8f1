"""Shards: what one rank gets of a model."""
