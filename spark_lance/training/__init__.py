"""Rows of a table for training: shuffled, split across processes, and as tensors."""
