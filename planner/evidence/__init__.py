"""Evidence: measurements, and the errors of estimates against them."""
