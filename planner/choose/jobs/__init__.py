"""A job: its fields and checks, the search over its frameworks, and nearby batches."""
