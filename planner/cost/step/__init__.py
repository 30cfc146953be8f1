"""Step: seconds of one optimizer step."""
