"""Tests, laid out as the package is."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""The repository."""
