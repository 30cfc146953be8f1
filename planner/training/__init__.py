"""Training: time and bill of a whole training: steps, data, start-up, checkpoints, failures."""
