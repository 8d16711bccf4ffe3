"""Conditions and computed columns: SQL text and pyarrow expressions over the columns of a table."""
