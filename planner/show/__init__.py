"""Show: display of results as tables, sentences and figures."""
