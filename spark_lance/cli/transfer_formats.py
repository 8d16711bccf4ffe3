"""The formats that rows are exported to and imported from: one row of `FORMATS` each.

Parquet, CSV and Arrow go through pyarrow batch by batch. JSON has no writer in Arrow, so its rows become text
one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

from spark_lance.cli.output import as_json
from spark_lance.errors import OptionError

__all__ = ["FORMATS", "Format", "format_of"]


class RowWriter(Protocol):
    """A sink for batches, until it is closed."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""

    def close(self) -> None:
        """Finish the file; the stream stays open."""


@dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        name: for `--format`.
        endings: of file names that mean it.
        writer: makes what writes batches of a schema to a stream.
        dataset_format: makes the format for `pyarrow.dataset`, given a schema to read by, or None.
    """

    name: str
    endings: tuple[str, ...]
    writer: Callable[[IO[bytes], pa.Schema], RowWriter]
    dataset_format: Callable[[pa.Schema | None], Any]


class _JsonLines:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write_batch(self, batch: pa.RecordBatch) -> None:
        lines = [as_json(row, indent=None) for row in batch.to_pylist()]
        self._stream.write("".join(f"{line}\n" for line in lines).encode())

    def close(self) -> None:
        """Nothing is left to be written."""


class _CsvLines:
    """A writer of CSV, which is text."""

    def __init__(self, stream: IO[bytes], schema: pa.Schema) -> None:
        self._writer = pyarrow.csv.CSVWriter(stream, schema)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        try:
            self._writer.write_batch(batch)
        except pa.ArrowInvalid:
            binary = [field.name for field in batch.schema if not _is_utf8(batch[field.name])]
            raise OptionError(
                f"CSV holds text, but {', '.join(binary)} has bytes that are not UTF-8: leave it out "
                "(--columns), or use another format, such as --format parquet"
            ) from None

    def close(self) -> None:
        self._writer.close()


def _is_utf8(array: pa.Array) -> bool:
    kinds = {pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}
    try:
        array.cast(kinds.get(array.type, array.type))
    except pa.ArrowInvalid:
        return False
    return True


def _csv_format(schema: pa.Schema | None) -> pyarrow.dataset.CsvFileFormat:
    types = None if schema is None else {field.name: field.type for field in schema}
    return pyarrow.dataset.CsvFileFormat(
        convert_options=pyarrow.csv.ConvertOptions(column_types=types, strings_can_be_null=True)
    )


def _csv_writer(stream: IO[bytes], schema: pa.Schema) -> Any:
    nested = [field.name for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise OptionError(
            f"CSV has no nested values: leave out {', '.join(nested)} (--columns), or use another format"
        )
    return _CsvLines(stream, schema)


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format(
            "parquet",
            (".parquet", ".pq"),
            lambda stream, schema: pyarrow.parquet.ParquetWriter(stream, schema, compression="zstd"),
            lambda schema: pyarrow.dataset.ParquetFileFormat(),
        ),
        Format("csv", (".csv",), _csv_writer, _csv_format),
        Format(
            "arrow",
            (".arrow", ".feather", ".ipc"),
            lambda stream, schema: pa.ipc.new_file(stream, schema),
            lambda schema: pyarrow.dataset.IpcFileFormat(),
        ),
        Format(
            "jsonl",
            (".jsonl", ".ndjson", ".json"),
            lambda stream, schema: _JsonLines(stream),
            lambda schema: pyarrow.dataset.JsonFileFormat(),
        ),
    )
}


def format_of(path: str, name: str | None) -> Format:
    """Return the format that was asked for, or that the ending of a path means.

    Raises:
        OptionError: neither tells.
    """
    if name is not None:
        return FORMATS[name]
    for each in FORMATS.values():
        if path.lower().rstrip("/").endswith(each.endings):
            return each
    what = f"the ending of {path} tells no format" if path else "standard output has no ending"
    raise OptionError(f"{what}: say --format, one of {', '.join(FORMATS)}")
