"""One layout taken apart: memory, ZeRO stages, offload, traffic, and what each number does."""
