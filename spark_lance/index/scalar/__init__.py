"""Scalar indexes, which scans use to find the rows that can match a condition."""
