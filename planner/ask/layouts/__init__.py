"""One layout in detail: memory, ZeRO stages, offload, traffic, sensitivity to each number."""
