"""The commands export, import and convert.

`convert` creates a table from a folder of Parquet files, or from a Delta table. It reads every file of a
Parquet folder, and the columns of all files. Parts of paths such as `day=2026-01-01` become columns, as in
Spark. The package `deltalake` reads Delta tables, whose log lists the current files. `convert` compares the
number of written rows with the number of source rows, which it counts first.

`FORMATS` lists the formats of export and import. pyarrow reads and writes Parquet, CSV and Arrow in batches.
Arrow has no JSON writer, so this module converts each row to JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import IO, Any, Protocol

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet

from spark_lance.cli.commands import Arguments
from spark_lance.cli.opening import open_table, parse_columns, storage_options
from spark_lance.cli.output import Progress, as_json, print_pairs, say, write_error
from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import (
    LanceError,
    LocationInUseError,
    OptionError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
)
from spark_lance.io.progress import report
from spark_lance.table.format.paths import VERSIONS_DIR


class RowWriter(Protocol):
    """Writes batches to a stream."""

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""

    def close(self) -> None:
        """Finish the file without closing the stream."""


@dataclass(frozen=True)
class Format:
    """A file format of export and import.

    Attributes:
        name: the value of `--format`.
        endings: the file extensions.
        writer: returns a writer of batches with a schema to a stream.
        dataset_format: returns the format for `pyarrow.dataset`, given the schema to read with, or None.
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
        """Do nothing: all rows have been written."""


class _CsvLines:
    """Writes CSV. Binary values must be UTF-8."""

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


def find_format(path: str, name: str | None) -> Format:
    """Return the requested format, or the format of a path's file extension.

    Raises:
        OptionError: there is no requested format, and the extension is unknown.
    """
    if name is not None:
        return FORMATS[name]
    for each in FORMATS.values():
        if path.lower().rstrip("/").endswith(each.endings):
            return each
    what = f"the extension of {path} has no known format" if path else "standard output has no file extension"
    raise OptionError(f"{what}: add --format, one of {', '.join(FORMATS)}")


def export_rows(arguments: Arguments) -> int:
    """Write rows to one file, or to standard output."""
    table = open_table(arguments)
    target = arguments.target
    file_format = find_format("" if target == "-" else target, arguments.format)
    columns = parse_columns(arguments)
    names = [field.name for field in table.schema] if columns is None else columns
    text_as = arguments.text_as or "string"
    scan = table.to_table(columns, limit=0, text_as=text_as)
    total = table.count_rows() if arguments.where is None else 0
    with (
        _output(target, arguments.overwrite) as stream,
        Progress(f"exporting {len(names)} columns") as progress,
    ):
        rows = 0
        with closing(file_format.writer(stream, _plain(scan.schema))) as writer:
            for batch in table.to_batches(columns, arguments.where, arguments.limit, text_as=text_as):
                writer.write_batch(pa.RecordBatch.from_arrays(_storage(batch), schema=_plain(scan.schema)))
                rows += batch.num_rows
                progress("exporting", rows, min(total, arguments.limit or total), "rows")
    if target != "-":
        _report_rows(arguments, f"exported {rows} rows to {target}", rows)
    return 0


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without extension types and metadata, which other programs may not support."""
    return pa.schema(
        [
            pa.field(
                field.name,
                field.type.storage_type if isinstance(field.type, pa.BaseExtensionType) else field.type,
                field.nullable,
            )
            for field in schema
        ]
    )


def _storage(batch: pa.RecordBatch) -> list[pa.Array]:
    return [column.storage if isinstance(column, pa.ExtensionArray) else column for column in batch.columns]


@contextmanager
def _output(target: str, overwrite: bool) -> Iterator[IO[bytes]]:
    """Open the export target. A file is renamed to its final name when it is complete."""
    if target == "-":
        yield sys.stdout.buffer
        return
    system, path = fsspec.core.url_to_fs(target)
    if system.isdir(path):
        file = f"{target.rstrip('/')}/rows.parquet"
        raise OptionError(f"{target} is a folder: add the name of a file, such as {file}")
    if system.exists(path) and not overwrite:
        raise LocationInUseError(f"{target} exists already: add --overwrite, or choose another name")
    part = f"{path}.part"
    try:
        with system.open(part, "wb") as stream:
            yield stream
        system.mv(part, path)
    except OSError as error:
        _remove(system, part)
        if isinstance(error, LanceError):
            raise
        raise write_error(target, error) from error
    except BaseException:
        _remove(system, part)
        raise


def _remove(system: Any, path: str) -> None:
    if system.exists(path):
        system.rm(path)


def import_rows(arguments: Arguments) -> int:
    """Append the rows of a file or folder to a table, or create a table from them."""
    file_format = find_format(arguments.source, arguments.format)
    options = storage_options(arguments)
    path = arguments.path
    if arguments.branch is not None:
        path = dataset(path, (arguments.branch, None), options).uri
    schema = None if arguments.mode != "append" else _read_schema(path, options)
    rows = _open_source(arguments.source, file_format, schema)
    total = rows.count_rows() if file_format.name in ("parquet", "arrow") else 0
    table, rows_written = write_counted(
        rows.to_batches(),
        rows.schema,
        path,
        total,
        mode=arguments.mode,
        storage_options=options,
        max_rows_per_file=arguments.max_rows_per_file,
    )
    if total and rows_written != total:
        raise SchemaError(f"{arguments.source} has {total} rows, but {rows_written} were read and written")
    return _report_rows(
        arguments, f"imported {rows_written} rows into version {table.version}", rows_written, table.version
    )


def write_counted(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, path: str, total: int, **options: Any
) -> tuple[LanceDataset, int]:
    """Write batches to a table and show the progress.

    Args:
        batches, schema: the rows.
        path: the table.
        total: the number of rows; 0 if it is unknown.
        options: the options of `write_dataset`.

    Returns:
        The new version and the number of rows.

    Raises:
        LanceError: see `write_dataset`.
        SchemaError: a value of the source does not fit the type of its column.
    """
    rows_written = 0
    failed: list[pa.ArrowException] = []
    with Progress("reading") as progress:

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows_written
            try:
                for batch in batches:
                    yield batch
                    rows_written += batch.num_rows
                    progress("writing", rows_written, total, "rows")
            except pa.ArrowException as error:
                failed.append(error)
                raise

        try:
            options = {name: value for name, value in options.items() if value is not None}
            dataset = write_dataset(counted(), path, schema=schema, **options)
        except pa.ArrowException as error:
            raise SchemaError(f"reading the rows: {_first_line(error)}") from error
    return dataset, rows_written


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _read_schema(path: str, options: dict[str, Any]) -> pa.Schema | None:
    try:
        return dataset(path, None, options).schema
    except TableNotFoundError:
        return None


def _open_source(source: str, file_format: Format, schema: pa.Schema | None) -> pyarrow.dataset.Dataset:
    """Open the import source. Text formats are parsed to the types of the table, if it exists."""
    system, path = fsspec.core.url_to_fs(source)
    if not system.exists(path):
        raise OptionError(f"{source} does not exist")
    try:
        source_data = pyarrow.dataset.dataset(
            path, format=file_format.dataset_format(schema), filesystem=system
        )
    except pa.ArrowException as error:
        raise SchemaError(f"reading {source}: {_first_line(error)}") from error
    if schema is None or file_format.name != "jsonl":
        return source_data
    types = {field.name: field for field in schema}
    return source_data.replace_schema(
        pa.schema([types.get(field.name, field) for field in source_data.schema])
    )


def _report_rows(arguments: Arguments, what: str, rows: int, version: int | None = None) -> int:
    if arguments.json:
        say(as_json({"rows": rows, **({} if version is None else {"version": version})}))
    else:
        say(what)
    return 0


_DELTA_LOG = "_delta_log"
_ICEBERG = ("metadata", "data")
_READERS = 16
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class _Source:
    """The source of a conversion.

    Attributes:
        kind: "parquet" or "delta".
        rows: the rows, to be read in order.
        count: the number of rows, from the metadata of the files or the log.
        partitions: the names of the columns from paths.
    """

    kind: str
    rows: pyarrow.dataset.Dataset
    count: int
    partitions: tuple[str, ...]


def convert(arguments: Arguments) -> int:
    """Create a table from a folder of Parquet files or a Delta table."""
    system, path = fsspec.core.url_to_fs(arguments.source)
    if not system.exists(path):
        raise OptionError(f"{arguments.source} does not exist")
    if system.exists(f"{path.rstrip('/')}/{VERSIONS_DIR}"):
        raise OptionError(f"{arguments.source} is already a Lance table: copy it with dataset.deep_clone")
    is_delta = system.exists(f"{path.rstrip('/')}/{_DELTA_LOG}")
    source = _delta(arguments.source) if is_delta else _parquet(system, path, arguments.source)
    try:
        dataset, rows_written = write_counted(
            source.rows.to_batches(batch_size=arguments.batch_rows),
            source.rows.schema.remove_metadata(),
            arguments.path,
            source.count,
            mode="create",
            storage_options=storage_options(arguments),
            data_storage_version=arguments.file_version,
            enable_stable_row_ids=arguments.stable_row_ids or None,
            max_rows_per_file=arguments.max_rows_per_file,
        )
    except TableExistsError as error:
        place = arguments.path
        raise TableExistsError(
            f"a Lance table exists at {place}: convert creates a new table, so choose another path"
        ) from error
    if not rows_written == source.count == dataset.count_rows():
        raise SchemaError(
            f"{arguments.source} has {source.count} rows, but {rows_written} were read and the table at "
            f"{arguments.path} has {dataset.count_rows()}: do not use it"
        )
    readers = {
        "source": source.kind,
        "rows": rows_written,
        "columns": len(dataset.schema.names),
        "partition columns": list(source.partitions),
        "version": dataset.version,
    }
    if arguments.json:
        say(as_json(readers))
    else:
        print_pairs(readers.items())
    return 0


def _parquet(system: fsspec.AbstractFileSystem, path: str, name: str) -> _Source:
    if all(system.exists(f"{path.rstrip('/')}/{part}") for part in _ICEBERG):
        raise OptionError(
            f"{name} looks like an Iceberg table, whose metadata lists the current files: read it with Spark"
        )
    hive = pyarrow.dataset.HivePartitioning.discover(infer_dictionary=False, null_fallback=_NO_VALUE)
    try:
        files = pyarrow.dataset.dataset(path, format="parquet", filesystem=system, partitioning=hive)
        fragments = list(files.get_fragments())
        if not fragments:
            raise OptionError(f"{name} has no Parquet files")
        with ThreadPoolExecutor(_READERS) as pool:
            schemas = [files.schema]
            rows = 0
            for count, fragment in enumerate(_mapped(pool, fragments), 1):
                schemas.append(fragment.physical_schema)
                rows += fragment.metadata.num_rows
                report("reading files", count, len(fragments), "files")
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, LanceError):
            raise
        if "magic bytes" in str(error):
            raise SchemaError(
                f"{name} has files that are not Parquet: convert a folder of Parquet files, or a Delta table"
            ) from error
        raise SchemaError(f"reading {name}: {str(error).splitlines()[0]}") from error
    file_columns = set(fragments[0].physical_schema.names)
    partitions = tuple(
        field for field in files.schema.names if field not in file_columns and _in_path(fragments, field)
    )
    return _Source("parquet", files.replace_schema(schema), rows, partitions)


def _mapped(
    pool: ThreadPoolExecutor, fragments: list[pyarrow.dataset.ParquetFileFragment]
) -> Iterator[pyarrow.dataset.ParquetFileFragment]:
    """Read the footers of fragments in parallel, and yield the fragments."""

    def load(fragment: pyarrow.dataset.ParquetFileFragment) -> pyarrow.dataset.ParquetFileFragment:
        fragment.ensure_complete_metadata()
        return fragment

    rest = iter(fragments)
    while part := list(islice(rest, _READERS)):
        yield from pool.map(load, part)


def _in_path(fragments: list[pyarrow.dataset.ParquetFileFragment], field: str) -> bool:
    return all(f"/{field}=" in f"/{fragment.path}" for fragment in fragments)


def _delta(name: str) -> _Source:
    try:
        deltalake = import_module("deltalake")
    except ModuleNotFoundError:
        raise OptionError(
            f"{name} is a Delta table, whose log lists the current files: pip install 'spark-lance[delta]'"
        ) from None
    try:
        table = deltalake.DeltaTable(name)
        rows = table.to_pyarrow_dataset()
        partitions = tuple(table.metadata().partition_columns)
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        raise SchemaError(f"reading the Delta table {name}: {str(error).splitlines()[0]}") from error
    return _Source("delta", rows, rows.count_rows(), partitions)
