"""Verdicts: what becomes of the classic strategies, what is in their way, and the field's guide."""
