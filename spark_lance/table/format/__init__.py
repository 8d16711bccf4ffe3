"""Stored parts of a table: manifest, transaction, deletion files, row ids, features and paths; no scan."""
