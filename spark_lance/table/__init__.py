"""The Lance table format: manifests, fragments, transactions, scans and commits."""
