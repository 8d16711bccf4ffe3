"""Keeping a table small and fast, by Spark jobs."""

from __future__ import annotations

from spark_lance.spark.lance_table.face import TableFace

__all__ = ["Maintaining"]


class Maintaining(TableFace):
    """Compaction, clustering and clean-up."""
