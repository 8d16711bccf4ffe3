"""The Lance data-file format, 0.1 (read only) and 2.0 to 2.2: bytes to Arrow and back, one file at a time."""
