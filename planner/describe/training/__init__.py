"""A training run besides its steps: data, evaluation, checkpoints, failures, charges."""
