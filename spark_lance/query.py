"""Full-text query classes for `full_text_query`: terms, phrases, several columns, and boolean queries."""

from __future__ import annotations

from spark_lance.index.text.queries import *  # noqa: F403
from spark_lance.index.text.queries import __all__ as __all__
