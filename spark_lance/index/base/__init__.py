"""Entries, files and rows of indices: the common base of all kinds."""
