"""Streams out of tables and into them."""
