"""Keeping a table small: compaction, clean-up, entries of indices."""
