"""Training run: data, evaluation, checkpoints, start-up, failures and charges."""
