"""Options of reads, writes and columns: one table, and what the options of other connectors mean."""
