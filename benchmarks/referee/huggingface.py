"""Hugging Face: its models as the planner's own check of a folder runs them."""

from __future__ import annotations

from planner.validate.folder.huggingface import run

__all__ = ["run"]
