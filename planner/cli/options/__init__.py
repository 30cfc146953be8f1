"""Options of the command line: single ones, and groups made from the fields of descriptions."""
