"""What an answer depends on: one change, and every number."""
