"""Referee: third-party training code, run for one step while its storages are tracked."""
