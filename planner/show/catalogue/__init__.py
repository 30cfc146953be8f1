"""Entries of the catalogues: quantities with kind and source, frameworks and their switches."""
