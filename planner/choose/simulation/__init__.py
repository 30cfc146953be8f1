"""Simulate one step of a layout event by event: its timeline, critical path and bottlenecks."""
