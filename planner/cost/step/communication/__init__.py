"""Communication: collectives of every parallel axis, and their exposed part."""
