"""What a whole training takes besides its steps: data, start-up, checkpoints, failures, energy."""
