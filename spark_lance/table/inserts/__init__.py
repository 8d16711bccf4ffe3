"""Writes that bring rows or whole tables, from the plan to the commit."""
