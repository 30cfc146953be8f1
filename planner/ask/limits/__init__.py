"""The largest model, sequence and batch, and the best batch."""
