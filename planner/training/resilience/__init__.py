"""Resilience: start-up time of a job, its checkpoints, and the cost of failures."""
