"""Folder: one rank of an emitted job in its real framework, beside the estimate."""
