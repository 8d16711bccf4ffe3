"""Convert the data that users pass to writes to a stream of record batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from spark_lance.errors import OptionError

_BATCH_ROWS = 8192


def as_reader(
    data: Any, schema: pa.Schema | None = None, like: pa.Schema | None = None
) -> pa.RecordBatchReader:
    """Return any supported kind of data as a stream of record batches.

    Args:
        data: one of:
            - a pyarrow Table, RecordBatch, RecordBatchReader, Dataset or Scanner, or a `LanceDataset`;
            - a pandas or polars DataFrame, a DuckDB relation, a Hugging Face Dataset, or any other object
            that
              exports an Arrow stream. Named levels of a pandas index become columns;
            - a dict of columns, which can be numpy matrices;
            - a list of dicts, one per row;
            - an iterable of RecordBatches, Tables, DataFrames or dicts. It needs `schema` if it may be empty,
              or if it yields dicts and is not a list.
        schema: the schema of an iterable, or the schema to which a DataFrame or dicts are converted.
        like: the schema of the target table. Python numbers get the types of its columns if they fit.

    Raises:
        OptionError: the kind of data is not supported, or an iterable needs a schema.
    """
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if hasattr(data, "scanner"):
        return data.scanner().to_reader()
    if hasattr(data, "to_reader"):
        return data.to_reader()
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _make_table(lambda: _table_from_pandas(data, schema)).to_reader()
    if hasattr(data, "with_format") and hasattr(data, "features"):
        return _read_hugging_face(data)
    if hasattr(data, "collect") and hasattr(data, "sink_parquet"):
        data = data.collect()
    if hasattr(data, "to_frame"):
        raise OptionError(
            f"data of type {type(data).__name__} is one column: give a table, such as data.to_frame()"
        )
    if hasattr(data, "__arrow_c_stream__"):
        return _without_views(pa.RecordBatchReader.from_stream(data))
    if isinstance(data, Mapping):
        columns = {name: _convert_matrix(values) for name, values in data.items()}
        return _make_table(lambda: _table_from_columns(columns, schema, like)).to_reader()
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _read_iterable(data, schema, like)
    raise OptionError(
        f"data of type {type(data).__name__} cannot be written: give an Arrow table or stream, a DataFrame, "
        "a dict of columns, a list of dicts, or batches with a schema"
    )


def _read_iterable(
    data: Iterable[Any], schema: pa.Schema | None, like: pa.Schema | None
) -> pa.RecordBatchReader:
    is_list = isinstance(data, Sequence) and len(data) > 0
    if schema is None and is_list and all(isinstance(row, Mapping) for row in data):
        # The keys can differ from row to row.
        names = dict.fromkeys(name for row in data for name in row)
        columns = {name: [row.get(name) for row in data] for name in names}
        return _make_table(lambda: _table_from_columns(columns, None, like)).to_reader()
    items = iter(data)
    if schema is None:
        first = next(items, None)
        schema = _schema_of(first)
        items = chain([first], items)
    return pa.RecordBatchReader.from_batches(schema, _to_batches(items, schema))


def _schema_of(item: Any) -> pa.Schema:
    """Return the schema of an iterable from its first item.

    Raises:
        OptionError: the item has no schema.
    """
    if isinstance(item, pa.RecordBatch | pa.Table):
        return item.schema
    if hasattr(item, "iloc") and hasattr(item, "columns"):
        return _table_from_pandas(item, None).schema
    if item is None:
        raise OptionError("an empty iterable needs the argument schema")
    if isinstance(item, Mapping):
        raise OptionError("an iterable of dicts needs the argument schema, unless it is a list")
    raise _unsupported_item(item)


def _unsupported_item(item: Any) -> OptionError:
    return OptionError(
        f"an iterable gave {type(item).__name__}: it must give record batches, tables, DataFrames or dicts"
    )


def _table_from_pandas(frame: Any, schema: pa.Schema | None) -> pa.Table:
    """Return a pandas DataFrame as a table, with the named levels of its index as columns."""
    if schema is not None:
        return pa.Table.from_pandas(frame, schema=schema)
    columns = set(frame.columns)
    unnamed = [i for i, name in enumerate(frame.index.names) if name is None or name in columns]
    if len(unnamed) == len(frame.index.names):
        return pa.Table.from_pandas(frame, preserve_index=False)
    return pa.Table.from_pandas(frame.reset_index(level=unnamed, drop=True), preserve_index=True)


def _table_from_columns(
    columns: Mapping[str, Any], schema: pa.Schema | None, like: pa.Schema | None
) -> pa.Table:
    """Return columns of values as a table."""
    values = dict(columns)
    if schema is None and like is not None:
        kinds = {field.name: field.type for field in like}
        values = {name: _convert_numbers(column, kinds.get(name)) for name, column in values.items()}
    try:
        return pa.Table.from_pydict(values, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        for name, column in values.items():
            _check_column(name, column, schema)
        raise


def _check_column(name: str, values: Any, schema: pa.Schema | None) -> None:
    """Check that one column can be converted. Arrow's own error does not name the column."""
    if schema is not None and name not in schema.names:
        return
    try:
        pa.array(values, None if schema is None else schema.field(name).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise type(error)(f"column {name!r}: {error}") from None


def _convert_numbers(values: Any, kind: pa.DataType | None) -> Any:
    """Return a list of Python numbers, or of lists of numbers, in the type of a column if they fit."""
    numbers = kind
    while numbers is not None and (pa.types.is_fixed_size_list(numbers) or pa.types.is_list(numbers)):
        numbers = numbers.value_type
    if numbers is None or not isinstance(values, list):
        return values
    if not (pa.types.is_integer(numbers) or pa.types.is_floating(numbers)):
        return values
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return values  # The comparison with the table's schema raises the error.


def _convert_matrix(values: Any) -> Any:
    """Return the values of a column; a numpy matrix becomes an array of vectors."""
    if not isinstance(values, np.ndarray) or values.ndim != 2 or not values.shape[1]:
        return values
    if values.dtype.kind not in "iuf":
        return list(values)
    numbers = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(numbers, values.shape[1])


def _to_batches(items: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the items of an iterable (batches, tables, DataFrames, or dicts with one row each) as batches."""
    for item in items:
        if isinstance(item, pa.RecordBatch):
            yield item
        elif isinstance(item, pa.Table):
            yield from item.to_batches()
        elif isinstance(item, Mapping):
            yield from _batch_rows(chain([item], items), schema)
        elif hasattr(item, "iloc") and hasattr(item, "columns"):
            yield from _table_from_pandas(item, schema).to_batches()
        else:
            raise _unsupported_item(item)


def _batch_rows(rows: Iterator[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    part: list[Any] = []
    for row in rows:
        part.append(row)
        if len(part) == _BATCH_ROWS:
            yield _batch_from_rows(part, schema)
            part = []
    if part:
        yield _batch_from_rows(part, schema)


def _batch_from_rows(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    batch = _make_table(lambda: pa.RecordBatch.from_pylist(rows, schema=schema))
    assert isinstance(batch, pa.RecordBatch)
    return batch


def _make_table(make: Any) -> Any:
    """Return the Arrow data that a function makes of Python values.

    Raises:
        OptionError: the values of a column have several types, or columns differ in length.
    """
    try:
        return make()
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise OptionError(f"these values cannot be converted to an Arrow table: {error}") from error


def _read_hugging_face(data: Any) -> pa.RecordBatchReader:
    """Read a Hugging Face Dataset in the order of its selections and shuffles."""
    schema = data.features.arrow_schema.remove_metadata()
    tables = data.with_format("arrow").iter(batch_size=_BATCH_ROWS)
    return pa.RecordBatchReader.from_batches(
        schema, (batch for table in tables for batch in table.cast(schema).to_batches())
    )


def _without_views(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return a stream without view types, which polars exports and the format cannot store."""
    target = pa.schema(
        [field.with_type(_storage_type(field.type)) for field in reader.schema], reader.schema.metadata
    )
    if target.equals(reader.schema):
        return reader
    return pa.RecordBatchReader.from_batches(target, (_cast_batch(batch, target) for batch in reader))


def _cast_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """Return a batch cast to a schema of storage types, see `_storage_type`."""
    columns = [
        pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(field.type.value_type))
        if pa.types.is_dictionary(field.type) and column.type != field.type
        else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _storage_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _storage_type(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([child.with_type(_storage_type(child.type)) for child in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_storage_type(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_storage_type(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_storage_type(kind.value_type)), kind.list_size)
    return kind
