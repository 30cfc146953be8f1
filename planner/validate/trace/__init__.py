"""Trace: exact bytes of one rank of a layout, or of a user's own module, without a device."""
