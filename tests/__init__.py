"""Tests: they mirror the folders of the package."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
"""Root folder of the repository."""
