"""Schedules: pipeline schedules by family, their bubble, event simulation and timeline."""
