"""Views: the pages of the explorer, one module each."""
