"""Train: small models on real ranks, compared with a single process and with the estimate."""
