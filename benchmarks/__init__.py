"""Benchmarks. Each one compares two systems that alternate in the same run, and prints ratios."""
