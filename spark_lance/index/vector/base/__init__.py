"""Partitions, k-means and distances: quantizers and searches rest on them."""
