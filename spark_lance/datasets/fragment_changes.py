"""Changes of one fragment that write files without a commit. Pass the results to `LanceDataset.commit`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.errors import FormatError, OptionError, OptionTypeError, RowNotFoundError, SchemaError
from spark_lance.expressions.predicate import Predicate
from spark_lance.file.base.extensions import restore_schema_types
from spark_lance.proto import table_pb2
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, filterable_schema

if TYPE_CHECKING:
    from spark_lance.datasets.fragment_metadata import DataFile, FragmentMetadata
    from spark_lance.datasets.lance_schema import LanceSchema
    from spark_lance.table.columns.new_columns import Computation, Stream

_WINDOW_BYTES = 64 << 20
_BATCH_ROWS = 1 << 20


class FragmentChanges(ABC):
    """Methods that change one fragment, for programs that commit several changes together."""

    message: table_pb2.DataFragment

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The snapshot of the fragment's version."""

    @property
    def metadata(self) -> FragmentMetadata:
        """The metadata of the fragment from the manifest."""
        from spark_lance.datasets.fragment_metadata import FragmentMetadata

        return FragmentMetadata.of(self.message)

    def data_files(self) -> list[DataFile]:
        """Return the data files."""
        from spark_lance.datasets.fragment_metadata import DataFile

        return [DataFile.of(file) for file in self.message.files]

    def deletion_file(self) -> str | None:
        """Return the path of the deletion file relative to the table's root; None if no row is deleted."""
        deletion = self.metadata.deletion_file
        return None if deletion is None else deletion.path(self.message.id)

    @property
    def physical_schema(self) -> pa.Schema:
        """The schema of the columns in the fragment's files. Other columns are null in this fragment."""
        ids = {number for file in self.message.files for number in file.fields}
        return restore_schema_types(self.snapshot.schema.prune(ids).to_arrow())

    def validate(self) -> None:
        """Check that the files exist and have as many rows as the manifest says.

        Raises:
            FormatError: a file is missing, damaged, or has another number of rows.
        """
        from spark_lance.file.reader import open_file

        snapshot = self.snapshot
        rows = snapshot.physical_rows(self.message)
        for file in self.message.files:
            store, path = snapshot.bases.data_file(file)
            try:
                num_rows = open_file(store, path).num_rows
            except FileNotFoundError:
                raise FormatError("a data file of the table is missing", path) from None
            if num_rows != rows:
                raise FormatError(f"the file has {num_rows} rows, the fragment {rows}", path)
        snapshot.deletions(self.message)

    def delete(self, predicate: Predicate) -> FragmentMetadata | None:
        """Write a deletion file for the rows that match a predicate.

        Returns:
            The fragment with the deletion file. If no row matches, the unchanged fragment. If no row remains,
            None. Commit it with `LanceOperation.Delete`.

        Raises:
            OptionTypeError: the predicate is None.
            ExpressionError: the predicate cannot be evaluated on the columns.
        """
        if predicate is None:
            raise OptionTypeError("delete needs a condition, not None; delete('true') deletes every row")
        snapshot = self.snapshot
        scan = snapshot.scan([ROW_ADDRESS], fragments=[self.message])
        addresses = [table[ROW_ADDRESS].to_numpy() for table in scan.tables(predicate, _WINDOW_BYTES)]
        offsets = np.concatenate([np.empty(0, np.uint64), *addresses]).astype(np.uint32)
        return self._delete_offsets(offsets)

    def delete_rows(self, offsets: Iterable[int]) -> FragmentMetadata | None:
        """Write a deletion file for rows by their physical offset in the fragment; see `delete`.

        Raises:
            RowNotFoundError: an offset is out of range.
        """
        rows = BitMap(offsets)
        total = self.snapshot.physical_rows(self.message)
        if rows and rows.max() >= total:
            raise RowNotFoundError(f"row {rows.max()} of fragment {self.message.id}, which has {total} rows")
        deleted = BitMap(self.snapshot.deletions(self.message))
        return self._delete_offsets(np.asarray((rows - deleted).to_array(), np.uint32))

    def _delete_offsets(self, offsets: np.ndarray[Any, np.dtype[np.uint32]]) -> FragmentMetadata | None:
        from spark_lance.datasets.fragment_metadata import FragmentMetadata
        from spark_lance.table.commits.row_changes import RowChanges
        from spark_lance.table.format.row_set import RowSet

        if not len(offsets):
            return self.metadata
        at = self.snapshot
        outcome = RowChanges(at, RowSet.from_offsets({self.message.id: offsets})).apply()
        return FragmentMetadata.of(outcome.updated[0]) if outcome.updated else None

    def merge_columns(
        self,
        value_func: Mapping[str, str] | Callable[[pa.RecordBatch], Any] | Any,
        columns: Sequence[str] | None = None,
        batch_size: int | None = None,
        reader_schema: pa.Schema | None = None,
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Write new columns of the fragment.

        Args:
            value_func: the source of the values, as for `LanceDataset.add_columns`.
            columns: columns that a function receives, which may include `_rowid` and `_rowaddr`. Default: all
                columns.
            batch_size: maximum number of rows per function call.
            reader_schema: schema of an iterable of RecordBatches.

        Returns:
            The fragment with the new file, and the new schema of the table. Commit them for all fragments
            with `LanceOperation.Merge`.

        Raises:
            SchemaError: a column exists already, or the values do not fit.
            ExpressionError: an expression cannot be evaluated on the columns.
        """
        from spark_lance.table.columns.new_columns import Stream, expressions, function
        from spark_lance.table.writing.inputs import as_reader

        at = self.snapshot
        source: Computation | Stream
        if isinstance(value_func, Mapping):
            source = expressions(value_func, filterable_schema(at.schema))
        elif callable(value_func):
            if getattr(value_func, "checkpoint_file", None) is not None:
                raise OptionError("A checkpoint file cannot be used with the columns of one fragment")
            names = [field.name for field in at.schema.fields] if columns is None else list(columns)
            source = function(value_func, names, lambda: self._first_row(names))
        else:
            source = Stream(as_reader(value_func, reader_schema))
        return self._write_columns(source, batch_size)

    def merge(
        self, data_obj: Any, left_on: str, right_on: str | None = None, schema: pa.Schema | None = None
    ) -> tuple[FragmentMetadata, LanceSchema]:
        """Write new columns by a left join with other data; returns the same as `merge_columns`.

        Args:
            data_obj: data as for `write_dataset`, which is kept in memory.
            left_on: key column of the table; `_rowid` and `_rowaddr` work, too.
            right_on: key column of the data. Default: `left_on`.
            schema: schema of an iterable of RecordBatches.

        Raises:
            SchemaError: see `LanceDataset.merge`.
        """
        from spark_lance.table.columns.new_columns import Join
        from spark_lance.table.writing.inputs import as_reader

        kind = pa.uint64()
        if left_on not in (ROW_ID, ROW_ADDRESS):
            kind = self.snapshot.schema.field(left_on).arrow_type()
        join = Join(as_reader(data_obj, schema).read_all(), right_on or left_on, kind)
        return self._write_columns(join.computation(left_on), None)

    def update_columns(
        self,
        data_obj: Any,
        left_on: str = ROW_ID,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
    ) -> tuple[FragmentMetadata, list[int]]:
        """Write columns of the fragment with new values for the rows whose key is in other data.

        Args:
            data_obj: keys and new values, in columns named like the table's columns.
            left_on, right_on, schema: as for `merge`.

        Returns:
            The fragment with the new file, and the ids of the fields that it changes. Commit them with
            `LanceOperation.Update(updated_fragments=, fields_modified=)`.

        Raises:
            SchemaError: a column does not exist, or values do not fit it.
        """
        from spark_lance.datasets.fragment_metadata import FragmentMetadata
        from spark_lance.table.columns.evolve import ColumnFiles
        from spark_lance.table.columns.update_in_place import NewValues, update_fragment
        from spark_lance.table.writing.inputs import as_reader

        at = self.snapshot
        data = as_reader(data_obj, schema).read_all()
        values = NewValues(at.manifest, data, left_on, right_on or left_on)
        outcome = update_fragment(ColumnFiles(at.table), at, self.message, values)
        if outcome is None:
            return self.metadata, []
        return FragmentMetadata.of(outcome.fragment), list(outcome.field_ids)

    def _write_columns(
        self, source: Computation | Stream, batch_size: int | None
    ) -> tuple[FragmentMetadata, LanceSchema]:
        from spark_lance.datasets.fragment_metadata import FragmentMetadata
        from spark_lance.datasets.lance_schema import LanceSchema
        from spark_lance.table.columns.evolve import extend_fragment

        at = self.snapshot
        if not len(source.schema):
            raise SchemaError("the data has no new columns")
        rows = _BATCH_ROWS if batch_size is None else batch_size
        message, schema = extend_fragment(at, self.message, source, rows)
        return FragmentMetadata.of(message), LanceSchema(schema)

    def _first_row(self, columns: Sequence[str]) -> pa.RecordBatch:
        scan = self.snapshot.scan(columns, fragments=[self.message])
        for batch in scan.batches(1 << 20, 1):
            return batch
        return pa.RecordBatch.from_pylist([], scan.arrow_schema)
