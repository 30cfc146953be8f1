"""Pages of layouts: one in detail, several side by side."""
