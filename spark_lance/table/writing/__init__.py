"""Writing rows and columns as data files; nothing here commits."""
