"""Views: the pages of the explorer, one module each.

Not `pages`: Streamlit takes a folder of that name beside its script for pages of its own.
"""
