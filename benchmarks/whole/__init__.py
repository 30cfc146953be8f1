"""Accuracy rows for everything but transformer steps: each module makes one table."""
