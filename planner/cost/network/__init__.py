"""Network: bandwidth and latency that a group of ranks sees, and times of collectives."""
