"""Scanners and scanner builders with pylance's arguments."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets import scanner as values
from spark_lance.datasets.scan_request import BATCH_ROWS, check_hints
from spark_lance.errors import OptionError
from spark_lance.index.text.queries import MultiMatchQuery
from spark_lance.index.text.search import indexed_text_columns
from spark_lance.index.vector.kinds import VECTOR_LABEL
from spark_lance.io.counters import ReadCounts, read_counts
from spark_lance.proto import table_pb2
from spark_lance.table.format.index_kinds import index_label

__all__ = ["LanceScanner", "ScanStatistics", "ScannerBuilder", "exact_rows", "scan_arguments", "search_scope"]

# pylance's name of a scan argument -> our name.
_RENAMED = {"batch_size_bytes": "batch_bytes"}
_ARGUMENTS = frozenset(
    {
        "columns",
        "filter",
        "limit",
        "offset",
        "nearest",
        "batch_size",
        "batch_bytes",
        "fragments",
        "full_text_query",
        "prefilter",
        "with_row_id",
        "with_row_address",
        "fast_search",
        "blob_handling",
        "use_scalar_index",
        "include_deleted_rows",
        "order_by",
        "disable_scoring_autoprojection",
    }
)


@dataclass(frozen=True)
class ScanStatistics:
    """The reads of this process while a scan ran, including those of concurrent scans.

    Attributes:
        iops, requests, bytes_read: numbers of byte ranges, requests and bytes.
        indices_loaded, parts_loaded, index_comparisons: always 0; not counted.
        all_counts: name -> count of the counted values.
    """

    iops: int = 0
    requests: int = 0
    bytes_read: int = 0
    indices_loaded: int = 0
    parts_loaded: int = 0
    index_comparisons: int = 0
    all_counts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, read: ReadCounts) -> ScanStatistics:
        """Return the figures of a scan."""
        counts = {"iops": read.reads, "requests": read.requests, "bytes_read": read.bytes}
        return cls(**counts, all_counts=counts)


def scan_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a scan with our names, without arguments that are None.

    Raises:
        OptionTypeError: an argument does not exist.
    """
    result = {_RENAMED.get(name, name): value for name, value in arguments.items() if value is not None}
    result.pop("scan_stats_callback", None)
    if "batch_size" not in result and (rows := os.environ.get("LANCE_DEFAULT_BATCH_SIZE")):
        result["batch_size"] = int(rows)
    check_hints({name: value for name, value in result.items() if name not in _ARGUMENTS})
    return {name: value for name, value in result.items() if name in _ARGUMENTS}


def search_scope(value: Any, arguments: dict[str, Any]) -> Any:
    """Return the dataset to search, and change arguments that need it.

    With `index_segments` the dataset has only these segments of vector indexes, and the search reads no other
    rows than theirs and those of `fragments`. Words without a column are searched in all indexed columns.
    """
    query = arguments.get("full_text_query")
    if isinstance(query, str):
        columns = indexed_text_columns(value.manifest)
        if len(columns) > 1:
            arguments["full_text_query"] = MultiMatchQuery(query, columns)
    segments = arguments.pop("index_segments", None)
    if segments is None:
        return value
    if arguments.get("nearest") is None:
        raise OptionError("index_segments is for vector searches: add nearest")
    if "fragments" not in arguments:
        arguments["fast_search"] = True
    ids = {uuid.UUID(str(segment)).bytes for segment in segments}
    vector_ids = {entry.uuid.uuid for entry in value.manifest.indices if index_label(entry) == VECTOR_LABEL}
    section = table_pb2.IndexSection.FromString(value.manifest.index_section)
    entries = [entry for entry in section.indices if entry.uuid.uuid not in vector_ids - ids]
    section = table_pb2.IndexSection(indices=entries)
    manifest = replace(value.manifest, index_section=section.SerializeToString())
    return replace(value, manifest=manifest)


@raises_os_errors
class LanceScanner(pyarrow.dataset.Scanner):  # type: ignore[misc]
    """A read that can run, count or explain its rows."""

    def __init__(
        self,
        scanner: values.LanceScanner,
        dataset: Any = None,
        exact_rows: int | None = None,
        stats_handler: Callable[[ScanStatistics], Any] | None = None,
    ) -> None:
        self._scanner = scanner
        self._dataset = dataset
        self._exact_rows = exact_rows
        self._stats_handler = stats_handler

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._scanner, self._dataset, self._exact_rows, self._stats_handler)

    @property
    def dataset_schema(self) -> pa.Schema:
        """The schema of the table."""
        return self._scanner.dataset_schema

    @property
    def projected_schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self._scanner.projected_schema

    def to_table(self) -> pa.Table:
        """Read the rows into memory."""
        before = read_counts()
        table = self._scanner.to_table()
        if self._stats_handler is not None:
            self._stats_handler(ScanStatistics.of(read_counts() - before))
        return table

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Stream the rows."""
        batches: Iterator[pa.RecordBatch] = self.to_reader()
        return batches

    def scan_batches(self) -> Iterator[pa.RecordBatch]:
        """Stream the rows."""
        return self.to_batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """Stream the rows as a RecordBatchReader."""
        reader = self._scanner.to_reader()
        schema = reader.schema
        if self._exact_rows is not None:
            reader = pa.RecordBatchReader.from_batches(schema, _rechunk(reader, self._exact_rows))
        if self._stats_handler is not None:
            reader = pa.RecordBatchReader.from_batches(
                schema, _report_statistics(reader, self._stats_handler)
            )
        return reader

    def to_pandas(self, **options: Any) -> Any:
        """Read the rows into a DataFrame."""
        options.pop("blob_mode", None)
        return self._scanner.to_pandas(**options)

    def count_rows(self) -> int:
        """Count the rows."""
        return self._scanner.count_rows()

    def head(self, num_rows: int) -> pa.Table:
        """Read the first rows."""
        return self._scanner.head(num_rows)

    def take(self, indices: Any) -> pa.Table:
        """Return rows of the result by position."""
        return self._scanner.take(indices)

    def explain_plan(self, verbose: bool = False) -> str:
        """Return the plan of the read."""
        return self._scanner.explain_plan(verbose)

    def analyze_plan(self, count_rows: bool = False) -> str:
        """Run the read and return its plan with row and I/O counts."""
        return self._scanner.analyze_plan()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows by Arrow's C stream interface."""
        return self._scanner.__arrow_c_stream__(requested_schema)


def _report_statistics(
    batches: Iterable[pa.RecordBatch], stats_handler: Callable[[ScanStatistics], Any]
) -> Iterator[pa.RecordBatch]:
    """Yield batches, then call the handler with the read statistics."""
    before = read_counts()
    yield from batches
    stats_handler(ScanStatistics.of(read_counts() - before))


def _rechunk(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield batches of `size` rows; the last may have fewer."""
    pending: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        pending.append(batch)
        rows += batch.num_rows
        while rows >= size:
            table = pa.Table.from_batches(pending)
            yield from table.slice(0, size).combine_chunks().to_batches()
            pending = table.slice(size).to_batches()
            rows -= size
    if rows:
        yield from pa.Table.from_batches(pending).combine_chunks().to_batches()


def exact_rows(arguments: Mapping[str, Any]) -> int | None:
    """Return the exact number of rows per batch if the scan sets `strict_batch_size`, else None."""
    if not arguments.get("strict_batch_size"):
        return None
    return int(arguments.get("batch_size") or BATCH_ROWS)


@raises_os_errors
class ScannerBuilder:
    """A builder of a scanner. Each method sets one argument of `LanceDataset.scanner`."""

    def __init__(self, ds: Any) -> None:
        self._ds = ds
        self._settings: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Callable[..., ScannerBuilder]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in _SETTERS:
            raise AttributeError(f"a scan has no argument {name}")
        return partial(self._set, name)

    def _set(self, name: str, value: Any = True) -> ScannerBuilder:
        self._settings[_SETTERS[name]] = value
        return self

    def nearest(self, column: str, q: Any, k: int | None = None, **options: Any) -> ScannerBuilder:
        """Set a vector search."""
        self._settings["nearest"] = {"column": column, "q": q, "k": k, **options}
        return self

    def full_text_search(self, query: Any, columns: Iterable[str] | None = None) -> ScannerBuilder:
        """Set a full-text search."""
        text = {"query": query, "columns": list(columns)} if columns is not None else query
        self._settings["full_text_query"] = text
        return self

    def apply_defaults(self, default_opts: Mapping[str, Any]) -> ScannerBuilder:
        """Set arguments from a dict."""
        self._settings.update(default_opts)
        return self

    def to_scanner(self) -> LanceScanner:
        """Return the scanner."""
        scanner: LanceScanner = self._ds.scanner(**self._settings)
        return scanner


# Method of the builder -> argument of a scan.
_SETTERS = {
    **{name: name for name in _ARGUMENTS - {"nearest", "full_text_query", "batch_bytes", "fragments"}},
    "with_fragments": "fragments",
    "with_index_segments": "index_segments",
    "batch_size_bytes": "batch_size_bytes",
    "batch_readahead": "batch_readahead",
    "fragment_readahead": "fragment_readahead",
    "io_buffer_size": "io_buffer_size",
    "late_materialization": "late_materialization",
    "scan_in_order": "scan_in_order",
    "strict_batch_size": "strict_batch_size",
    "use_stats": "use_stats",
    "scan_stats_callback": "scan_stats_callback",
}
