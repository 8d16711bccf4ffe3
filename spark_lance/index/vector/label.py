"""What the manifest says of indices of vectors: their label, and the newest version that is known."""

from __future__ import annotations

__all__ = ["VECTOR_LABEL", "VECTOR_NEWEST"]

VECTOR_LABEL, VECTOR_NEWEST = "vectorindexdetails", 2
