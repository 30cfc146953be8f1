"""Options of the command line: single options, and groups made from fields of descriptions."""
