"""Uncertainty: the spread of measured runs around their estimates."""
