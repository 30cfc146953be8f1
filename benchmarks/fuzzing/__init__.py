"""Fuzzing: real inputs of every reader, mutated by a seeded generator."""
