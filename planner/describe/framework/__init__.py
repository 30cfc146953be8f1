"""Framework: how a training framework does things, as data."""
