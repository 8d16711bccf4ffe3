"""Sources of the values of new columns: expressions, functions, streams of batches, and joins.

Each source has the Arrow schema of its new columns and the names of the table columns that it reads. It maps
batches of a fragment's rows to batches of new values with the same number of rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import join, make_filterable
from spark_lance.errors import SchemaError, suggestion
from spark_lance.expressions.predicate import compile_expression


@dataclass(frozen=True)
class Computation:
    """Columns computed batch by batch from columns of the table.

    Attributes:
        schema: the schema of the new columns.
        columns: the columns of the table to read, possibly including `_rowid` and `_rowaddr`.
        compute: returns the new columns for a batch of `columns`.
        any_order: whether `compute` may be called from several threads, for fragments in any order.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    compute: Callable[[pa.RecordBatch], pa.RecordBatch]
    any_order: bool = True

    def values(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the new columns of a fragment's rows.

        Raises:
            SchemaError: `compute` returns another number of rows.
        """
        for batch in rows:
            computed = self.compute(batch)
            if computed.num_rows != batch.num_rows:
                raise SchemaError(f"{computed.num_rows} new values came back for {batch.num_rows} rows")
            yield computed


class Stream:
    """Columns whose values come from a stream, in the order of the table's rows. It can be read only once."""

    columns: tuple[str, ...] = ()

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.schema = reader.schema
        self._reader = reader
        self._rest: pa.RecordBatch | None = None
        self._at_end = False

    def values(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the next values of the stream, one for each of the rows.

        Raises:
            SchemaError: the stream ends too early.
        """
        rows_to_read = sum(batch.num_rows for batch in rows)
        while rows_to_read:
            batch = self._next()
            if batch is None:
                raise SchemaError("Stream ended before producing values for all rows in dataset")
            part, rest = batch.slice(0, rows_to_read), batch.slice(rows_to_read)
            self._rest = rest if rest.num_rows else None
            rows_to_read -= part.num_rows
            yield part

    def finish(self) -> None:
        """Close the stream.

        Raises:
            SchemaError: the stream has more values.
        """
        if self._next() is not None:
            raise SchemaError("Stream produced more values than expected for dataset")
        self._at_end = True

    @property
    def is_finished(self) -> bool:
        """Whether all values have been read."""
        return self._at_end

    def _next(self) -> pa.RecordBatch | None:
        """Return the next values of the stream; None at the end."""
        batch, self._rest = self._rest, None
        while batch is None or not batch.num_rows:
            try:
                batch = self._reader.read_next_batch()
            except StopIteration:
                return None
        return batch


def expressions(texts: Mapping[str, str], schema: pa.Schema) -> Computation:
    """Return the source of columns that SQL expressions on the table's columns define.

    Raises:
        ExpressionError: an expression does not fit the schema.
    """
    compiled = {name: compile_expression(text, schema) for name, text in texts.items()}
    columns = tuple(
        dict.fromkeys(column for expression in compiled.values() for column in expression.columns)
    )
    target = pa.schema([pa.field(name, expression.type) for name, expression in compiled.items()])

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        table = pa.Table.from_batches([batch])
        arrays = [_one_array(expression.evaluate(table)) for expression in compiled.values()]
        return pa.RecordBatch.from_arrays(arrays, schema=target)

    return Computation(target, columns, compute)


def null_columns(texts: Mapping[str, str], schema: pa.Schema) -> pa.Schema | None:
    """Return the new columns if all SQL expressions are typed nulls, such as `cast(null as int)`; else None.

    Raises:
        ExpressionError: an expression does not fit the schema.
    """
    compiled = {name: compile_expression(text, schema) for name, text in texts.items()}
    if not all(expression.is_typed_null for expression in compiled.values()):
        return None
    return pa.schema([pa.field(name, expression.type) for name, expression in compiled.items()])


@dataclass(frozen=True)
class BatchUDF:
    """A function from batches to batches, with the schema of its results; see `batch_udf`."""

    func: Callable[[pa.RecordBatch], Any]
    output_schema: pa.Schema | None = None
    checkpoint_file: str | os.PathLike[str] | None = None

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """Call the function."""
        return self.func(batch)


def batch_udf(
    output_schema: pa.Schema | None = None,
    checkpoint_file: str | os.PathLike[str] | None = None,
) -> Callable[[Callable[[pa.RecordBatch], Any]], BatchUDF]:
    """Return a decorator that makes a `BatchUDF` of a function, for `add_columns`.

    Args:
        output_schema: the schema of the function's results; by default the function is called with one row to
            determine it.
        checkpoint_file: a file that keeps the results until everything is written, so that a failed run can
            resume without computing finished batches again.
    """
    return lambda func: BatchUDF(func, output_schema, checkpoint_file)


def function(
    call: Callable[[pa.RecordBatch], Any], columns: Sequence[str], sample: Callable[[], pa.RecordBatch]
) -> Computation:
    """Return the source of columns that a function computes.

    Args:
        call: a function from a RecordBatch to a RecordBatch, a Table or a pandas DataFrame. Its attribute
            `output_schema`, if any, is the schema of its results.
        columns: the columns of the table that it reads.
        sample: returns a batch of at most one row, to determine the schema if there is no `output_schema`.
    """
    schema = getattr(call, "output_schema", None)
    if schema is None:
        schema = _as_batch(call_user_function(call, sample()), call).schema.remove_metadata()

    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        result = _as_batch(call_user_function(call, batch), call, schema)
        if result.schema.names != schema.names:
            raise SchemaError(
                "Output schema of function does not match the expected schema: it gave "
                f"{', '.join(result.schema.names)} after {', '.join(schema.names)}"
            )
        return result

    return Computation(schema, tuple(columns), compute, any_order=False)


def call_user_function(call: Callable[[pa.RecordBatch], Any], batch: pa.RecordBatch) -> Any:
    """Return the result of a user's function; an error of it also names the function and its batch."""
    try:
        return call(batch)
    except Exception as error:
        if hasattr(error, "add_note"):  # since Python 3.11
            columns = ", ".join(batch.schema.names)
            error.add_note(
                f"in {_name(call)}, called with a batch (rows: {batch.num_rows}, columns: {columns})"
            )
        raise


def _name(call: Any) -> str:
    return str(
        getattr(call, "__name__", None) or getattr(getattr(call, "func", call), "__name__", "the function")
    )


def _as_batch(result: Any, call: Any, schema: pa.Schema | None = None) -> pa.RecordBatch:
    if isinstance(result, pa.RecordBatch):
        return result
    if isinstance(result, pa.Table):
        arrays = [_one_array(column) for column in result.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=result.schema)
    if hasattr(result, "iloc"):
        return pa.RecordBatch.from_pandas(result, schema=schema, preserve_index=False)
    raise SchemaError(
        f"{_name(call)} returned {type(result).__name__}: return a record batch, as in "
        "pyarrow.record_batch({'x': values})"
    )


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    chunks = join(column.chunks)
    if not chunks:
        return pa.nulls(0, column.type)
    if len(chunks) > 1:
        raise SchemaError(f"the dictionaries of a column of {column.type} cannot be united")
    return chunks[0]


class Join:
    """Looks up the columns of other data by key; rows without a match get null.

    The other data is held in memory. If several rows have the same key, the last row wins. Null equals null.
    """

    def __init__(self, data: pa.Table, key: str, kind: pa.DataType) -> None:
        """Prepare `data` for lookups.

        Args:
            data: the other data.
            key: the column of `data` with the keys.
            kind: the type of the keys in the table.

        Raises:
            SchemaError: the column does not exist, or its values cannot be cast to this type.
        """
        if key not in data.column_names:
            raise SchemaError(
                f"column {key!r} is not in the data; it has {', '.join(data.column_names)}"
                f"{suggestion(key, data.column_names)}"
            )
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        keys = _one_array(data[key])
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        try:
            keys = keys.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SchemaError(
                f"the key {key!r} is {keys.type} in the data and {kind} in the table"
            ) from error
        # Reversed, because Arrow finds the first of several equal keys.
        self._keys = keys[::-1]
        others = data.drop_columns([key])
        self.schema = others.schema.remove_metadata()
        self._columns = [make_filterable(_one_array(column)) for column in others.columns]

    def places(self, keys: pa.ChunkedArray | pa.Array) -> pa.Array:
        """Return the row of the data that matches each key, as int64; null without a match."""
        if isinstance(keys, pa.ChunkedArray):
            keys = _one_array(keys)
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        positions = pc.index_in(keys, value_set=self._keys)
        return pc.subtract(pa.scalar(len(self._keys) - 1, pa.int64()), positions.cast(pa.int64()))

    def take(self, places: pa.Array) -> pa.RecordBatch:
        """Return the rows at `places`; a null place gives a row of nulls, even in NOT NULL columns."""
        arrays = [column.take(places) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, names=self.schema.names)

    def computation(self, key: str) -> Computation:
        """Return the source of the columns other than the key; `key` is the table's key column."""
        return Computation(self.schema, (key,), lambda batch: self.take(self.places(batch.column(0))))
