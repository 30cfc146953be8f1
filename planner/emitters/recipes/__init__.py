"""Recipes: a layout in the files of each framework."""
