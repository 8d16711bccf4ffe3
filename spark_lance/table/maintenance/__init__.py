"""Table maintenance: compaction, clustering, dropping indexes, checks."""
