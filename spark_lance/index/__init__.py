"""Indices: file formats, builds and searches."""
