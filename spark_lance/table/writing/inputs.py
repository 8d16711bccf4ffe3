"""The kinds of data that users hand over, as one: a stream of record batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_lance.errors import OptionError

__all__ = ["as_reader"]


def as_reader(data: Any, schema: pa.Schema | None = None) -> pa.RecordBatchReader:
    """Return any accepted kind of data as a stream of batches.

    Args:
        data: a pyarrow Table, RecordBatch, RecordBatchReader, Dataset or Scanner, a pandas DataFrame, or an
            iterable of RecordBatches (which needs `schema`).
        schema: of an iterable, or for a DataFrame.

    Raises:
        OptionError: an iterable comes without a schema.
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
    if hasattr(data, "iloc"):
        return pa.Table.from_pandas(data, schema=schema, preserve_index=False).to_reader()
    if schema is None:
        raise OptionError("an iterable of record batches needs the argument schema")
    return pa.RecordBatchReader.from_batches(schema, data)
