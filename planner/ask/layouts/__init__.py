"""One layout in detail: memory, ZeRO stages, offload, traffic."""
