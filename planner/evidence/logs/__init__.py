"""Logs: training logs, and their comparison with the estimates of their jobs."""
