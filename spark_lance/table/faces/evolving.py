"""Changing columns."""

from __future__ import annotations

from spark_lance.table.faces.base import Face

__all__ = ["Evolving"]


class Evolving(Face):
    """Changes of columns; each makes a new version."""
