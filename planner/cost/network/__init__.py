"""Network: bandwidth and latency of groups of ranks, and times of collectives."""
