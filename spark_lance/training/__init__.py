"""Rows of a table for training: shuffled, shared out among processes, and as tensors."""
