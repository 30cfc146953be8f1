"""A module of someone's own, as what torch was seen to compute and keep for a sample."""
