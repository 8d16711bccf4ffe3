"""The Lance data-file format, versions 2.0 to 2.2: bytes to Arrow and back, one file at a time."""
