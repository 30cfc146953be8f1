"""Bundle: all files of one job: the recipe's, adapters, scripts, the layout and the README."""
