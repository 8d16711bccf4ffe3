"""Spark's types and rows beside Lance's."""
