"""Framework: traits, support and switches of a training framework, as data."""
