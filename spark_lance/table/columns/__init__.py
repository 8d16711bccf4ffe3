"""Changing columns: add, join, cast, rename, drop."""
