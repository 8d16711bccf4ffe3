"""Entries, files and rows of indexes: each kind of index rests on them."""
