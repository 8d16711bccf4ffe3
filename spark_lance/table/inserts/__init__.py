"""Writes of rows or whole tables, from the plan to the commit."""
