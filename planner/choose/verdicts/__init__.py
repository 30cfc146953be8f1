"""Verdicts on the classic strategies, what rules them out, and the guide of HPC centres."""
