"""Trace: exact bytes of one rank of any layout, and of a user's own module, with no device."""
