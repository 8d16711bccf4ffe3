"""Batch writes: files from tasks and one commit."""
