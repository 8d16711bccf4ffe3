"""Indices of vectors: partitions around centroids (IVF), in which vectors are kept whole or as codes."""
