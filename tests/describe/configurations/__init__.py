"""Tests of what reads configuration files."""
