"""Cost: memory and time of layouts, by part; one implementation for one layout or many."""
