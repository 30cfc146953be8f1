"""Configurations: a job's layout, workload and framework, read from its own files."""
