"""Keeping a table small and fast."""

from __future__ import annotations

from spark_lance.table.faces.base import Face

__all__ = ["Maintaining"]


class Maintaining(Face):
    """Compaction and clean-up."""
