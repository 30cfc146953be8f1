"""Choose: which layouts are allowed, which is best, and why."""
