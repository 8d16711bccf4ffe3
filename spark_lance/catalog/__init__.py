"""Tables by name: which namespaces and tables a catalog has, and where each table is."""
