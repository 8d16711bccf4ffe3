"""Names of index entries that belong to the format itself, not to an index of a column."""

from __future__ import annotations

__all__ = ["FRAGMENT_REUSE", "MEM_WAL"]

# Where rows went that compactions moved without writing indices anew.
FRAGMENT_REUSE = "__lance_frag_reuse"
# Rows that writers keep in memory, with a log.
MEM_WAL = "__lance_mem_wal"
