"""Changing rows: delete, update, merge by key."""
