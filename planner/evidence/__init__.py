"""Evidence: measurements, and how far estimates are from them."""
