"""Trace: exact bytes of one rank of any layout, with no device."""
