"""Hugging Face models: config.json files and names on the hub, read without transformers."""
