"""Options of reads, writes and columns: one table, and who else's options mean what."""
