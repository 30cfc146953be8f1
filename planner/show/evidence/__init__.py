"""Evidence: how well estimates match measured runs, and what those runs teach."""
