"""Indices over Lance tables. What a manifest says of an index is kept by the table layer."""
