"""Exit codes of the command line."""

FITS, NOTHING_FITS, WRONG_USE, REFUSED_ROWS = 0, 1, 2, 3
UNFORESEEN = 70
INTERRUPTED = 130
