"""Why: stages of ZeRO, offload, buckets, host memory and the network, taken apart."""
