"""Indices of words: which rows have them, and how well they answer a query."""
