"""Rows of the accuracy page beside steps of transformers: each module gives its own."""
