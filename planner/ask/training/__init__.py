"""Time outside the steps: input data, start-up, checkpoints."""
