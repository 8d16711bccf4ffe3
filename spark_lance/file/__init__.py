"""The Lance data file format: reads versions 0.1 and 2.0 to 2.3, writes 2.0 to 2.2, one file at a time."""
