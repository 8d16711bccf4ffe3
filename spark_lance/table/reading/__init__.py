"""Reading rows: fragments, scans, single rows, blobs, and what changed between versions."""
