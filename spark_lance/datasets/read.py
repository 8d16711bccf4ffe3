"""Reads of rows by columns, filters and positions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from spark_lance.datasets.fragment_changes import FragmentChanges
from spark_lance.datasets.scan_request import (
    BATCH_BYTES,
    BATCH_ROWS,
    BlobHandling,
    Columns,
    OrderBy,
    Projection,
    ScanRequest,
    check_hints,
    orderings,
)
from spark_lance.datasets.scanner import LanceScanner, ScanSource
from spark_lance.datasets.spelling import SpellingHintMixin
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.expressions.predicate import Predicate
from spark_lance.file.base.extensions import restore_schema_types, restore_table_types
from spark_lance.proto import table_pb2
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot

if TYPE_CHECKING:
    from spark_lance.datasets.fragment_metadata import FragmentMetadata
    from spark_lance.datasets.lance_dataset import LanceDataset
    from spark_lance.datasets.show import PlanPicture
    from spark_lance.table.reading.take import RowNumbers


class Readable(ScanSource):
    """The methods that read a version or one of its fragments."""

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with pyarrow's extension types."""
        return restore_schema_types(self.snapshot.schema.to_arrow())

    def explain(self, format: Literal["text", "html"] = "text", **scan: Any) -> PlanPicture | str:
        """Return the plan of a read: fragments read and skipped, and the indexes that the filter uses.

        Args:
            format: "text", or "html" for a diagram in a notebook.
            scan: arguments of `scanner`.

        Raises:
            OptionError: the format or an argument of `scanner` is wrong.
        """
        scanner = self.scanner(**scan)
        if format == "text":
            return scanner.explain_plan(verbose=True)
        if format != "html":
            raise OptionError(f"there is no format {format!r}: use text or html")
        return scanner.plan_picture()

    def scanner(
        self,
        columns: Columns = None,
        filter: Predicate | None = None,
        limit: int | None = None,
        offset: int | None = None,
        nearest: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        *,
        full_text_query: Any = None,
        prefilter: bool = False,
        order_by: OrderBy = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        fragments: Iterable[Any] | None = None,
        batch_bytes: int | None = None,
        use_scalar_index: bool = True,
        fast_search: bool = False,
        blob_handling: BlobHandling = "blobs_descriptions",
        text_as: str = "string",
        include_deleted_rows: bool = False,
        disable_scoring_autoprojection: bool = False,
        **hints: Any,
    ) -> LanceScanner:
        """Return a scanner, which can run, count or explain the read: `scanner(...).to_table()`.

        Args:
            columns: names of top-level columns, paths of struct fields such as "s.x", or a dict from names to
                SQL expressions such as {"twice": "2 * n"}. Default: all columns. The names can include the
                system columns `_rowid`, `_rowaddr`, `_rowoffset`, `_row_created_at_version` and
                `_row_last_updated_at_version`.
            filter: SQL or a pyarrow expression over any columns of the table, and over system columns except
                `_rowoffset`. The scan reads other columns only for rows that pass the filter.
            limit: maximum number of rows, after `offset` rows were skipped.
            offset: number of rows to skip.
            nearest, full_text_query, prefilter: a search; see `LanceDataset.to_table`.
            batch_size: maximum number of rows per batch.
            order_by: columns to sort by, as names or `ColumnOrdering`s. With a limit, only `limit` rows are
                kept in memory.
            with_row_id: add the column `_rowid` (uint64).
            with_row_address: add the column `_rowaddr` (uint64: fragment id << 32 | physical row).
            fragments: read only these fragments, in this order.
            batch_bytes: approximate size of a batch in bytes.
            use_scalar_index: whether the filter may use scalar indexes.
            fast_search: whether a search skips rows that are not indexed.
            blob_handling: "blobs_descriptions" returns the locations of blobs, "all_binary" their bytes.
            text_as: "binary" reads text columns as binary, for tables with text that is not valid UTF-8.
                Indexes of these columns are not used then.
            include_deleted_rows: also read deleted rows that are still stored; their `_rowid` is null.
            disable_scoring_autoprojection: return `_distance` or `_score` only if `columns` names it.
            hints: arguments of other implementations without effect on the result (`batch_readahead`).

        Raises:
            OptionError: an argument is unknown or has a bad value.
        """
        check_hints(hints)
        request = ScanRequest(
            columns=columns,
            filter=filter,
            limit=limit,
            offset=offset,
            nearest=nearest,
            full_text_query=full_text_query,
            prefilter=bool(prefilter),
            order_by=orderings(order_by),
            with_row_id=bool(with_row_id),
            with_row_address=bool(with_row_address),
            fragments=None if fragments is None else _fragment_messages(fragments),
            batch_size=BATCH_ROWS if batch_size is None else batch_size,
            batch_bytes=BATCH_BYTES if batch_bytes is None else batch_bytes,
            use_scalar_index=use_scalar_index is not False,
            fast_search=bool(fast_search),
            blob_handling=blob_handling or "blobs_descriptions",
            text_as=text_as,
            include_deleted_rows=bool(include_deleted_rows),
            disable_scoring_autoprojection=bool(disable_scoring_autoprojection),
            hints=hints,
        )
        return LanceScanner(self._texts_as_binary() if text_as == "binary" else self, request)

    @abstractmethod
    def _texts_as_binary(self) -> Readable:
        """Return a reader of the same rows that reads text columns as binary."""

    def count_rows(self, filter: Predicate | None = None, **hints: Any) -> int:
        """Return the number of rows. Without a filter, this reads only the manifest."""
        return self.scanner([], filter, **hints).count_rows()

    def to_table(
        self,
        columns: Columns = None,
        filter: Predicate | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        *,
        nearest: Mapping[str, Any] | None = None,
        full_text_query: Any = None,
        prefilter: bool = False,
        **options: Any,
    ) -> pa.Table:
        """Return rows as an Arrow table. With `nearest` or `full_text_query`, return the result of a search.

        Args:
            columns: columns to read; see `scanner`. Default: all columns.
            nearest: a vector search as a dict with pylance's keys: `column`, `q` (a vector, or a list of
                vectors), `k` (default: `limit`, or 10), `metric`, `nprobes` or `minimum_nprobes` and
                `maximum_nprobes`, `refine_factor`, `ef`, `use_index`, `fast_search`, `distance_range`. The
                result has the additional column `_distance`; with several vectors also `query_index`, as the
                first column.
            full_text_query: words, a phrase in double quotes, or a dict with `query`, `column` (default: the
                column with an index), `operator` ("or" or "and"), `phrase` (False) and `fast_search`; or a
                query of `spark_lance.query`. The matching rows have the additional column `_score` and are
                sorted by it, best first; `limit` is their number.
            prefilter: True applies the filter before the search, which returns k matching rows. False applies
                the filter to the k nearest rows.
            filter, limit, offset, with_row_id, with_row_address, options: see `scanner`.
        """
        return self.scanner(
            columns,
            filter,
            limit,
            offset,
            nearest,
            full_text_query=full_text_query,
            prefilter=prefilter,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            **options,
        ).to_table()

    def to_batches(
        self,
        columns: Columns = None,
        filter: Predicate | None = None,
        limit: int | None = None,
        offset: int | None = None,
        with_row_id: bool = False,
        with_row_address: bool = False,
        batch_size: int | None = None,
        batch_bytes: int | None = None,
        **options: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Stream rows as record batches of about `batch_bytes` bytes and at most `batch_size` rows.

        The other arguments and the errors are the same as for `to_table`.
        """
        options |= {"batch_size": batch_size, "batch_bytes": batch_bytes}
        options |= {"with_row_id": with_row_id, "with_row_address": with_row_address}
        return self.scanner(columns, filter, limit, offset, **options).to_batches()

    def to_pandas(self, columns: Columns = None, filter: Predicate | None = None, **options: Any) -> Any:
        """Return rows as a pandas DataFrame; `options` are arguments of `scanner`."""
        return self.to_table(columns, filter, **options).to_pandas()

    def head(self, num_rows: int, **options: Any) -> pa.Table:
        """Return the first `num_rows` rows; `options` are arguments of `scanner`."""
        return self.scanner(**options).head(num_rows)

    def take(self, indices: RowNumbers, columns: Columns = None) -> pa.Table:
        """Return the rows at the positions `indices` (0-based, in scan order), in the given order.

        Raises:
            IndexError: a position is out of range.
            SchemaError: a column does not exist.
        """
        from spark_lance.table.reading.take import take_positions

        projection = Projection.of(columns, self.snapshot.schema)
        return restore_table_types(
            projection.apply(take_positions(self.plan_scan(projection.reads), indices))
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export all rows through Arrow's C stream interface, for `pa.table(ds)`, `pl.DataFrame(ds)` etc."""
        return self.scanner().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Export the schema through Arrow's C data interface."""
        return self.scanner().__arrow_c_schema__()


def _fragment_messages(fragments: Iterable[Any]) -> list[table_pb2.DataFragment]:
    """Return the protobuf messages of fragments."""
    if not isinstance(fragments, Iterable):
        raise OptionTypeError(f"fragments is a list, as in [fragment], not {type(fragments).__name__}")
    return [_fragment_message(fragment) for fragment in fragments]


def _fragment_message(fragment: Any) -> table_pb2.DataFragment:
    """Return the protobuf message of a fragment, or of an object that wraps one."""
    message = getattr(fragment, "message", fragment)
    if not isinstance(message, table_pb2.DataFragment):
        raise OptionTypeError(f"fragments takes what get_fragments gives, not {type(fragment).__name__}")
    return message


@dataclass(frozen=True, repr=False)
class LanceFragment(SpellingHintMixin, FragmentChanges, Readable):
    """One fragment of a version. `_rowoffset` is relative to the whole table."""

    parent: LanceDataset
    message: table_pb2.DataFragment

    @staticmethod
    def create(
        dataset_uri: Any,
        data: Any,
        fragment_id: int | None = None,
        schema: pa.Schema | None = None,
        *,
        mode: str = "append",
        data_storage_version: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> FragmentMetadata:
        """Write data as the file of one fragment without a commit.

        Args:
            dataset_uri, data, schema, mode, data_storage_version, storage_options: as for `write_fragments`.
            fragment_id: id of the returned fragment; a commit assigns a new id.

        Raises:
            OptionError: the data has no rows.
        """
        from spark_lance.datasets.building import write_fragments

        result = write_fragments(
            data,
            dataset_uri,
            schema,
            mode=mode,
            max_rows_per_file=1 << 62,
            max_bytes_per_file=1 << 62,
            data_storage_version=data_storage_version,
            storage_options=storage_options,
        )
        if not isinstance(result, list) or not result:
            raise OptionError("there are no rows, and so no fragment")
        (fragment,) = result
        fragment.id = fragment_id or 0
        return fragment

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the fragment's version."""
        return self.parent.snapshot

    def _texts_as_binary(self) -> LanceFragment:
        return replace(self, parent=self.parent._texts_as_binary())

    @property
    def fragment_id(self) -> int:
        """The fragment's id."""
        return self.message.id

    @property
    def physical_rows(self) -> int:
        """The number of stored rows, including deleted rows."""
        return self.parent.snapshot.physical_rows(self.message)

    @property
    def num_deletions(self) -> int:
        """The number of deleted rows."""
        return int(self.message.deletion_file.num_deleted_rows)

    def __repr__(self) -> str:
        return f"LanceFragment(id={self.fragment_id}, rows={self.count_rows():,}, of={self.parent.uri!r})"

    def plan_scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> Scan:
        """Return a scan plan for columns of the fragment; None for all columns."""
        return self.parent.snapshot.scan(
            columns,
            with_row_id=with_row_id,
            with_row_address=with_row_address,
            fragments=[self.message],
        )
