"""Spark's types and rows, and their counterparts in Lance."""
