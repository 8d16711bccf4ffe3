"""Reading rows: fragments, scans, single rows, blobs, and changes between versions."""
