"""Evidence: what was measured, and how far estimates are from it."""
