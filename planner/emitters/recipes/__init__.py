"""Recipes: the files of each framework for a layout, a module each."""
