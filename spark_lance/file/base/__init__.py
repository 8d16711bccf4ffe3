"""Schema, types, metadata, limits and versions of data files: every reader and writer rests on them."""
