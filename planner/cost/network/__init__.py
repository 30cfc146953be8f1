"""Network: what a group of ranks sees of the machine, and how long its collectives take."""
