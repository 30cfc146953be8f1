"""Models of Hugging Face: config.json files and names on the hub, read without transformers."""
