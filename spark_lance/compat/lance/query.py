"""Queries of text as objects."""

from __future__ import annotations

from spark_lance.index.text.queries import *  # noqa: F403
from spark_lance.index.text.queries import __all__ as __all__
