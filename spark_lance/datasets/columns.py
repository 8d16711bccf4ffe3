"""Methods that add, update, alter and drop columns.

Checkpoints of computed columns let a failed run resume. The file is an SQLite database with one table:

    results   input: text, SHA-256 of the function's input batch, including the row addresses
              output: blob, the function's result, as an Arrow IPC stream

A result is reused only for the same rows with the same values, so it is never stale.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_lance.datasets.spelling import split_names
from spark_lance.errors import FormatError, OptionError, OptionTypeError, SchemaError, suggestion
from spark_lance.file.base.limits import check_arrow_stream, decoding
from spark_lance.table.columns.alter import alter_columns, drop_columns
from spark_lance.table.columns.evolve import add_columns, add_null_columns
from spark_lance.table.columns.new_columns import (
    Computation,
    Join,
    Stream,
    expressions,
    function,
    null_columns,
)
from spark_lance.table.columns.update_in_place import update_columns
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, filterable_schema
from spark_lance.table.schema.changes import Alteration
from spark_lance.table.writing.inputs import as_reader

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


class Checkpoints:
    """A file with the results of one run.

    Args:
        path: path of the file, which is created if it is missing.

    Raises:
        OptionError: the file is not a checkpoint file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        try:
            with self._open() as database:
                database.execute("create table if not exists results (input text primary key, output blob)")
        except sqlite3.DatabaseError as error:
            raise OptionError(f"{path} is not a file of checkpoints: {error}") from error

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def wrap(self, source: Computation) -> Computation:
        """Return a computation that calls its function only for results that have no checkpoint."""
        columns = tuple(dict.fromkeys([*source.columns, ROW_ADDRESS]))

        def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
            key = _digest(batch)
            return self._compute_cached(key, lambda: source.compute(batch.select(list(source.columns))))

        return Computation(source.schema, columns, compute, any_order=False)

    def _compute_cached(self, key: str, compute: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        database = self._open()
        try:
            row = database.execute("select output from results where input = ?", (key,)).fetchone()
            if row is not None:
                return _from_ipc(row[0], str(self._path))
            output = compute()
            with database:
                database.execute("insert or replace into results values (?, ?)", (key, _to_ipc(output)))
            return output
        finally:
            database.close()

    def remove(self) -> None:
        """Delete the file after the run has completed."""
        self._path.unlink(missing_ok=True)


def _to_ipc(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def _from_ipc(data: object, path: str) -> pa.RecordBatch:
    with decoding(path):
        try:
            if not isinstance(data, bytes):
                raise FormatError(f"a result is stored as {type(data).__name__}, not as bytes")
            check_arrow_stream(data)
            with pa.ipc.open_stream(data) as reader:
                batch = reader.read_next_batch()
            batch.validate(full=True)
        except FormatError as error:
            raise error.at(path=path) from error
        except (pa.ArrowException, OSError, StopIteration) as error:
            raise FormatError(f"a result of a function is damaged: {error}; delete the file", path) from error
        return batch


def _digest(batch: pa.RecordBatch) -> str:
    return hashlib.sha256(_to_ipc(batch)).hexdigest()


_BATCH_ROWS = 1 << 20

_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True)
class DatasetColumns:
    """Methods that change columns. Each call commits one version."""

    dataset: LanceDataset

    def add(
        self,
        transforms: Mapping[str, str]
        | Callable[[pa.RecordBatch], Any]
        | pa.Field
        | Sequence[pa.Field]
        | pa.Schema
        | Any,
        read_columns: Sequence[str] | None = None,
        reader_schema: pa.Schema | None = None,
        batch_size: int | None = None,
    ) -> LanceDataset:
        """Add columns and return the new version. Existing files are not rewritten.

        To add fields to an existing struct, pass a struct with the same name and only the new fields. This
        needs data files of version 2.2 or newer.

        Args:
            transforms: the source of the values:

                - a dict from names to SQL expressions over the columns, such as {"c": "a * 2"};
                - a function from a RecordBatch to a RecordBatch (or Table, or pandas DataFrame) with the same
                  number of rows, plain or created by `batch_udf`;
                - values for all rows in table order: a RecordBatchReader, Table, DataFrame, or an iterable of
                  RecordBatches;
                - a pyarrow field, a list of fields, or a schema: columns that are null in every row.
            read_columns: columns that a function receives, which may include `_rowid` and `_rowaddr`.
                Default: all columns.
            reader_schema: schema of an iterable of RecordBatches.
            batch_size: maximum number of rows per function call.

        Raises:
            SchemaError: a column exists already, or type or number of the values do not fit.
            ExpressionError: an expression cannot be evaluated on the columns.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        _check_expressions(transforms)
        if isinstance(transforms, pa.Field):
            transforms = [transforms]
        if isinstance(transforms, list) and transforms and isinstance(transforms[0], pa.Field):
            transforms = pa.schema(transforms)
        rows = _BATCH_ROWS if batch_size is None else batch_size
        if rows < 1:
            raise OptionError("batch_size must be at least 1")
        if isinstance(transforms, Mapping) and transforms:
            # Columns with only nulls need no files.
            transforms = (
                null_columns(transforms, filterable_schema(self.dataset.manifest.schema)) or transforms
            )
        if isinstance(transforms, pa.Schema):
            if not len(transforms):
                return self.dataset
            return self.dataset.at(add_null_columns(self.dataset.snapshot, transforms))
        source: Computation | Stream
        if isinstance(transforms, Mapping):
            source = expressions(transforms, filterable_schema(self.dataset.manifest.schema))
            if not transforms:
                return self.dataset
        elif callable(transforms):
            if isinstance(read_columns, str):
                split = split_names(read_columns)
                raise OptionTypeError(f"read_columns is a list, as in {split}, not the text {read_columns!r}")
            names = read_columns
            if names is None:
                names = [field.name for field in self.dataset.manifest.schema.fields]
            source = function(transforms, names, lambda: sample_row(self.dataset.snapshot, names))
            if (file := getattr(transforms, "checkpoint_file", None)) is not None:
                checkpoints = Checkpoints(file)
                result = self.dataset.at(
                    add_columns(self.dataset.snapshot, checkpoints.wrap(source), batch_rows=rows)
                )
                checkpoints.remove()
                return result
        else:
            source = Stream(as_reader(transforms, reader_schema))
        return self.dataset.at(add_columns(self.dataset.snapshot, source, batch_rows=rows))

    def merge(
        self,
        data_obj: Any,
        left_on: str,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
    ) -> LanceDataset:
        """Add columns by a left join with other data, and return the new version.

        Table rows without a matching key get null. If several rows of the data have the same key, the last
        row wins. The data is kept in memory.

        Args:
            data_obj: a Table, RecordBatchReader, Dataset, DataFrame, or an iterable of RecordBatches.
            left_on: key column of the table; `_rowid` and `_rowaddr` work, too.
            right_on: key column of the data. Default: `left_on`.
            schema: schema of an iterable of RecordBatches.

        Raises:
            SchemaError: a key column does not exist or has another type, a new column exists already, or a
                row without a match would get null in a NOT NULL column.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        kind = pa.uint64()
        if left_on not in (ROW_ID, ROW_ADDRESS):
            kind = self.dataset.manifest.schema.field(left_on).arrow_type()
        join = Join(as_reader(data_obj, schema).read_all(), right_on or left_on, kind)
        if not len(join.schema):
            raise SchemaError("the data has no columns besides its key")
        source = join.computation(left_on)
        return self.dataset.at(add_columns(self.dataset.snapshot, source))

    def update(
        self,
        data_obj: Any,
        left_on: str = ROW_ID,
        right_on: str | None = None,
        schema: pa.Schema | None = None,
    ) -> LanceDataset:
        """Replace column values of the rows whose key is in other data, and return the new version.

        Rows do not move, and other columns are neither read nor written. For many rows and few columns, this
        is less work than `update` or `merge_insert`, which move whole rows. Fragments with a changed row get
        a new file with the updated columns of all their rows. The data is kept in memory. If several of its
        rows have the same key, the last row wins.

        Args:
            data_obj: keys and new values, in columns named like the table's columns: a Table,
                RecordBatchReader, Dataset, DataFrame, or an iterable of RecordBatches.
            left_on: key column of the table; `_rowid` and `_rowaddr` work, too.
            right_on: key column of the data. Default: `left_on`.
            schema: schema of an iterable of RecordBatches.

        Raises:
            SchemaError: a column does not exist, or values do not fit it.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        data = as_reader(data_obj, schema).read_all()
        return self.dataset.at(update_columns(self.dataset.snapshot, data, left_on, right_on or left_on))

    def alter(self, *alterations: Mapping[str, Any]) -> LanceDataset:
        """Rename columns, change their nullability, or cast them, and return the new version.

        Args:
            alterations: dicts with the keys

                - "path": the column; "a.b" for the field b of a struct a, "l.item" for the items of a list;
                - "name": the new name;
                - "nullable": whether the column may contain nulls; False reads all its values first;
                - "data_type": the new type, of the same family (integers, floating-point numbers, texts,
                  lists, ...); this rewrites the column.

        Raises:
            SchemaError: a column does not exist, a name is taken, the column contains nulls or values that
                do not fit the new type, or a column to cast has an index.
            OptionError: a dict has other keys, or only the key "path".
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        parsed = [read_alteration(alteration) for alteration in alterations]
        if not parsed:
            return self.dataset
        return self.dataset.at(alter_columns(self.dataset.snapshot, parsed))

    def drop(self, columns: Iterable[str]) -> LanceDataset:
        """Drop columns, or struct fields ("a.b"), and return the new version.

        Older versions keep the values. Files that also have other columns keep them until compaction.

        Raises:
            SchemaError: a column does not exist, is part of the primary key, or is the last column.
            OptionTypeError: the argument is a str instead of a list of names.
            CommitError: the commit conflicts with other writers; see its subclasses.
        """
        if isinstance(columns, str):
            raise OptionTypeError(
                f"columns is a list, as in {split_names(columns)}, not the text {columns!r}"
            )
        paths = list(columns)
        if not paths:
            return self.dataset
        return self.dataset.at(drop_columns(self.dataset.snapshot, paths))


def sample_row(snapshot: Snapshot, columns: Sequence[str]) -> pa.RecordBatch:
    """Return a batch with one row of a version, or an empty batch if the version has no rows."""
    scan = snapshot.scan(columns)
    for batch in scan.batches(_SAMPLE_BYTES, 1):
        return batch
    return pa.RecordBatch.from_pylist([], scan.arrow_schema)


def _check_expressions(transforms: object) -> None:
    """Check that new columns are not text, and their values not numbers.

    Raises:
        OptionTypeError: they are.
    """
    if isinstance(transforms, str):
        raise OptionTypeError(
            f"new columns are a dict from names to SQL, such as {{'x': 'a + 1'}}, not {transforms!r}"
        )
    if isinstance(transforms, Mapping):
        for name, value in transforms.items():
            if isinstance(value, bool | int | float | None):
                raise OptionTypeError(
                    f"the values of column {name!r} are SQL text, such as '{value}', not {value!r}"
                )


_KEYS = {"path", "name", "nullable", "data_type"}


def read_alteration(alteration: Mapping[str, Any]) -> Alteration:
    """Parse a dict that alters a column; see `DatasetColumns.alter`.

    Raises:
        OptionError: the dict has other keys, or only the key "path".
    """
    if not isinstance(alteration, Mapping):
        raise OptionTypeError(
            f"an alteration is a dict, such as {{'path': 'a', 'name': 'b'}}, not {alteration!r}"
        )
    if unknown := alteration.keys() - _KEYS:
        name = min(unknown)
        raise OptionError(
            f"an alteration has no key {name!r}; use {', '.join(sorted(_KEYS))}{suggestion(name, _KEYS)}"
        )
    if "path" not in alteration or len(alteration) < 2:
        raise OptionError(
            "an alteration needs a path, and a name, nullable or data_type, as in {'path': 'a', 'name': 'b'}"
        )
    if not isinstance(alteration.get("nullable"), bool | None):
        raise OptionTypeError(f"nullable of an alteration is True or False, not {alteration['nullable']!r}")
    kind = alteration.get("data_type")
    if kind is not None and not isinstance(kind, pa.DataType):
        raise OptionTypeError(f"data_type is a type of pyarrow, such as pyarrow.int32(), not {kind!r}")
    return Alteration(
        alteration["path"], alteration.get("name"), alteration.get("nullable"), alteration.get("data_type")
    )
