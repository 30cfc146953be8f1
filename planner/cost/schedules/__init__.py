"""Schedules: pipeline schedules, by family; bubble, event simulation and timeline."""
