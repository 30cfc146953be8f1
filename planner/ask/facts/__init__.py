"""What an answer hangs on: one change, and every number."""
