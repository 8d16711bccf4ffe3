"""Schemas with field ids, and schemas as JSON."""

from __future__ import annotations

from spark_lance.datasets.lance_schema import LanceSchema

__all__ = ["LanceSchema"]
