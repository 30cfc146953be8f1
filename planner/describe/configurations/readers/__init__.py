"""Readers: the configuration files of each framework or library, a module each."""
