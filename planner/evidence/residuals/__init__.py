"""How far estimates of this version are from measured runs, row by row."""
