"""Step: time of one optimizer step, by part."""
