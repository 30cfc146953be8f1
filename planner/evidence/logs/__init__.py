"""Logs: records of training loops, beside the estimates of their jobs."""
