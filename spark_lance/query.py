"""Queries of text as objects, for `full_text_query`: words, phrases, several columns, parts that must be."""

from __future__ import annotations

from spark_lance.index.text import queries
from spark_lance.index.text.queries import *  # noqa: F403 (its names are this module's)

__all__: list[str] = []
__all__ += queries.__all__
