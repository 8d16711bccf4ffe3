"""`FreshDataset`: a table combined with the rows in its MemWAL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_lance.arrow.arrays import pick_rows
from spark_lance.datasets.read import Readable
from spark_lance.datasets.scan_request import Columns, Projection, ScanRequest
from spark_lance.datasets.scanner import LanceScanner, Searcher
from spark_lance.datasets.searching import measured_schema
from spark_lance.errors import OptionError
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.file.base.extensions import restore_table_types
from spark_lance.file.base.schema import Schema
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, filterable_schema

if TYPE_CHECKING:
    from spark_lance.memwal.fresh import FreshRows, FreshScan
    from spark_lance.table.reading.take import RowNumbers


@dataclass(frozen=True, repr=False)
class FreshDataset(Readable):
    """The newest state of every row in table, SSTables and logs. Get it from `LanceDataset.fresh`.

    It is immutable: open it again to see newer rows. Rows that are not in the table have null as `_rowid` and
    `_rowaddr`.

    Attributes:
        uri: path or URI of the table, as the user passed it.
        rows: the base version and the additional rows of the shards.
    """

    uri: str
    rows: FreshRows

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot of the base version."""
        return self.rows.base

    @property
    def version(self) -> int:
        """The base version's number."""
        return self.snapshot.version

    def __repr__(self) -> str:
        waiting = sum(part.num_rows for shard in self.rows.shards for part in shard.parts)
        return (
            f"FreshDataset({self.uri!r}, version={self.version}, shards={len(self.rows.shards)}, "
            f"logged_rows={waiting})"
        )

    @property
    def searcher(self) -> FreshSearcher:
        """Vector search."""
        return FreshSearcher(self.rows)

    def plan_scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> FreshScan:
        """Return a scan plan for columns of all rows; None for all columns."""
        return self.rows.scan(columns, with_row_id=with_row_id, with_row_address=with_row_address)

    def _texts_as_binary(self) -> FreshDataset:
        raise OptionError("text_as cannot be used with fresh(): read the table without its logs")

    def scanner(self, *arguments: Any, **options: Any) -> LanceScanner:
        """Return a scanner; see `LanceDataset.scanner`. Only vector search (`nearest`) is supported.

        Raises:
            OptionError: an argument has a bad value, or applies only to the table without its MemWAL.
        """
        for name in ("fragments", "include_deleted_rows", "fast_search", "full_text_query"):
            if options.get(name):
                raise OptionError(f"{name} cannot be used with fresh(): read the table without its logs")
        return super().scanner(*arguments, **options)

    def take(self, indices: RowNumbers, columns: Columns = None) -> pa.Table:
        """Return the rows at the positions `indices` (0-based, in scan order), in the given order."""
        return self.scanner(columns).take(list(indices))

    def lookup(self, keys: Any, columns: Columns = None) -> pa.Table:
        """Return the rows with the given primary keys, in the order of the keys. Missing keys are skipped.

        Args:
            keys: the key columns, as data for `write_dataset`; or a list of values for a single key column.
            columns: columns to read; see `scanner`. Default: all columns.

        Raises:
            OptionError: the table has no primary key, or the keys lack a key column.
            SchemaError: the keys do not fit the key columns, or a column does not exist.
        """
        from spark_lance.table.writing.align import Aligner
        from spark_lance.table.writing.inputs import as_reader

        names = self.rows.key_names
        if not names:
            raise OptionError("lookup needs a primary key, and the table has none: create the table with one")
        fields = tuple(self.snapshot.schema.field(name) for name in names)
        if isinstance(keys, list | tuple) and not any(isinstance(key, Mapping) for key in keys):
            if len(names) > 1:
                raise OptionError(f"keys must be a table, or dicts, with the columns {', '.join(names)}")
            keys = pa.table({names[0]: pa.array(keys, fields[0].arrow_type())})
        key_table = as_reader(keys).read_all()
        absent = [name for name in names if name not in key_table.column_names]
        if absent:
            raise OptionError(f"the keys lack the primary key column {absent[0]!r}: add it")
        aligner = Aligner(key_table.select(list(names)).schema, Schema(fields))
        batches = [aligner.align(batch) for batch in key_table.select(list(names)).to_batches()]
        projection = Projection.of(columns, self.snapshot.schema)
        reads = (
            [f.name for f in self.snapshot.schema.fields] if projection.reads is None else projection.reads
        )
        rows = self.rows.lookup(pa.Table.from_batches(batches, aligner.arrow_schema), reads)
        return restore_table_types(projection.apply(rows))


@dataclass(frozen=True)
class FreshSearcher(Searcher):
    """Vector search over the newest state of every row."""

    rows: FreshRows

    def added_columns(self, request: ScanRequest) -> pa.Schema:
        """Return the schema of the additional columns of a search."""
        return measured_schema(request, self.rows.base.schema)

    def run(self, request: ScanRequest, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a search, with its additional columns such as `_distance`."""
        from spark_lance.index.vector.query import VectorQuery
        from spark_lance.memwal.nearest import nearest_rows

        nearest = dict(request.nearest or {})
        if nearest.get("k") is None and request.limit is not None:
            nearest["k"] = max(request.limit, 1)
        query = VectorQuery.parse(nearest)
        condition = None
        if request.filter is not None:
            condition = compile_predicate(request.filter, filterable_schema(self.rows.base.schema))
        measured = self.added_columns(request).names
        flags = [
            name
            for name, is_requested in ((ROW_ID, request.with_row_id), (ROW_ADDRESS, request.with_row_address))
            if is_requested
        ]
        later = condition is not None and not request.prefilter
        table_columns = [name for name in columns if name not in measured]
        extra = condition.columns if condition is not None and later else ()
        names = list(dict.fromkeys([*table_columns, *flags, *extra])) or [ROW_ADDRESS]
        tables = []
        for number, result in enumerate(
            nearest_rows(self.rows, query, names, condition if request.prefilter else None)
        ):
            rows = result.rows.append_column("_distance", pa.array(result.distances, pa.float32()))
            if "query_index" in measured:
                rows = rows.append_column("query_index", pa.array(np.full(rows.num_rows, number, np.int32)))
            if condition is not None and later:
                rows = pick_rows(rows, np.flatnonzero(condition.mask(rows).fill_null(False).to_numpy()))
            tables.append(rows)
        result = pa.concat_tables(tables)
        first = [name for name in measured if name == "query_index"]
        return restore_table_types(
            result.select(list(dict.fromkeys([*first, *table_columns, *measured, *flags])))
        )
