"""Pages of the explorer, one module each."""
