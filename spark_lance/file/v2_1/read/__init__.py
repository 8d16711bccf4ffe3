"""Decoding of pages to Arrow fields."""
