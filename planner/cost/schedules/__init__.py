"""Schedules: in which order pipeline stages work, and what follows from it; one module each."""
