"""Schema, types, metadata, limits and versions of data files: the basis of all readers and writers."""
