"""Validation against torch, which is loaded only when a check starts."""
