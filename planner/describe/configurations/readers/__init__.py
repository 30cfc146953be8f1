"""The configuration files of each software, one module each."""
