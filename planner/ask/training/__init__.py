"""What a training takes besides its steps: input data, start-up, checkpoints."""
