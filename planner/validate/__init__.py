"""Validation against torch: trace exact bytes and collectives of a sharded model.

Importing this package loads no torch; `trace` starts it in a subprocess.
"""
