"""Chunks, blocks of values and codecs: the parts that encodings, layouts and pages share."""
