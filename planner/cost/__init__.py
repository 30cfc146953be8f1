"""Cost: what layouts take, in bytes and seconds, by part; one implementation for any number."""
