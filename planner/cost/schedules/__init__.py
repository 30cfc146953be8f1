"""Schedules: pipeline schedules, one module each; bubble, event simulation and timeline."""
