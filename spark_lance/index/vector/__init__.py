"""Vector indexes: partitions around centroids (IVF) with full or quantized vectors."""
