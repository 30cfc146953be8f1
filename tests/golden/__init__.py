"""Golden answers: whole answers of the command line, kept to the digit."""
