"""Keeping a table small and whole: compaction, clustering, dropping indices, checks."""
