"""Indices of single values, used by scans: which rows may have values that a condition keeps."""
