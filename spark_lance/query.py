"""Queries of text as objects, for `full_text_query`: words, phrases, several columns, parts that must be."""

from __future__ import annotations

from spark_lance.index.text.queries import *  # noqa: F403
from spark_lance.index.text.queries import __all__ as __all__
