"""Batch reads: rows, metadata, changes, search; partitions out of tables."""
