"""Ranks: start processes on this machine, watch them, collect what they return."""
