"""Entries, files and rows of indexes: the common base of all kinds."""
