"""Shards: layers, parameters and states of one rank."""
