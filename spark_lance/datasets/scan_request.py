"""The request of a read, and the hints that other implementations take."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from spark_lance.datasets.ordering import ColumnOrdering
from spark_lance.datasets.projection import Columns
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.expressions.predicate import Predicate
from spark_lance.proto import table_pb2
from spark_lance.table.reading.texts import check_text_as

if TYPE_CHECKING:
    from spark_lance.index.vector.query import VectorQuery

logger = logging.getLogger(__name__)

BATCH_BYTES = 8 << 20
BATCH_ROWS = 1 << 17

BlobHandling = Literal["all_binary", "blobs_descriptions"]
_BLOB_HANDLINGS = ("all_binary", "blobs_descriptions")

# How another implementation may run a scan. They change no result, and nothing here.
HINTS = frozenset(
    {
        "batch_readahead",
        "fragment_readahead",
        "io_buffer_size",
        "late_materialization",
        "scan_in_order",
        "strict_batch_size",
        "use_stats",
        "use_threads",
        "cache_metadata",
        "memory_pool",
        "fragment_scan_options",
    }
)


def check_hints(hints: Mapping[str, Any]) -> None:
    """Take notice of hints.

    Raises:
        OptionTypeError: one is not known.
    """
    if unknown := sorted(hints.keys() - HINTS):
        names = [each.name for each in fields(ScanRequest)]
        near = get_close_matches(unknown[0], names, 1)
        suggestion = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(names)}"
        raise OptionTypeError(f"a scan has no argument {', '.join(unknown)}{suggestion}")
    arguments = {name: value for name, value in hints.items() if value is not None}
    if arguments:
        logger.debug("hints that change nothing here: %s", arguments)


@dataclass(frozen=True)
class ScanRequest:
    """A read, see `Readable.scanner`.

    Raises:
        OptionError: a value cannot be used.
    """

    columns: Columns = None
    filter: Predicate | None = None
    limit: int | None = None
    offset: int | None = None
    nearest: Mapping[str, Any] | None = None
    full_text_query: Any = None
    prefilter: bool = False
    order_by: tuple[ColumnOrdering, ...] = ()
    with_row_id: bool = False
    with_row_address: bool = False
    fragments: Sequence[table_pb2.DataFragment] | None = None
    batch_size: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    use_scalar_index: bool = True
    fast_search: bool = False
    blob_handling: BlobHandling = "blobs_descriptions"
    text_as: str = "string"
    include_deleted_rows: bool = False
    disable_scoring_autoprojection: bool = False
    hints: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("limit", "offset"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise OptionTypeError(f"{name} must be a whole number, not {value!r}")
            if value is not None and value < 0:
                raise OptionError(f"{name.capitalize()} must be non-negative, not {value}")
        for name in ("batch_size", "batch_bytes"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} must be at least 1")
        if self.blob_handling not in _BLOB_HANDLINGS:
            raise OptionError(f"blob_handling is {' or '.join(_BLOB_HANDLINGS)}, not {self.blob_handling!r}")
        check_text_as(self.text_as)
        if self.nearest is not None and self.full_text_query is not None:
            raise OptionError("a search is by vector or by text, not by both")
        if self.include_deleted_rows and self.is_search:
            raise OptionError("Cannot include deleted rows in a search by vector or text")

    @property
    def is_search(self) -> bool:
        """Whether rows are searched for, by vector or text."""
        return self.nearest is not None or self.full_text_query is not None

    @cached_property
    def vector_query(self) -> VectorQuery:
        """The request in `nearest`; `limit` is the number of rows if `nearest` has no `k`.

        Raises:
            OptionError: a key or value that a search does not have.
        """
        from spark_lance.index.vector.query import VectorQuery

        if not isinstance(self.nearest, Mapping):
            raise OptionTypeError(
                f"nearest is a dict such as {{'column': 'vector', 'q': [...], 'k': 10}}, not {self.nearest!r}"
            )
        nearest = dict(self.nearest)
        if nearest.get("k") is None and self.limit is not None:
            nearest["k"] = max(self.limit, 1)
        if self.fast_search:
            nearest["fast_search"] = True
        return VectorQuery.parse(nearest)
