"""The Lance data-file format: 2.0 to 2.2 to Arrow and back, 0.1 and 2.3 to Arrow, one file at a time."""
