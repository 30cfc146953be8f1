"""Train: small models on real ranks, beside one process and beside the estimate."""
