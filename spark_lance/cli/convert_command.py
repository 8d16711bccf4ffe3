"""The command that creates a table from a folder of Parquet files, or from a Delta table: convert.

All files of a folder count, and columns that only some of them have count, too. Parts of paths such as
`day=2026-01-01` become columns, as Spark reads them. The package `deltalake` reads a Delta table, because
only the log says which of its files count. In both cases the rows of the source are counted beforehand and
compared with the written rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import islice

import fsspec
import pyarrow as pa
import pyarrow.dataset

from spark_lance.cli.names import Arguments
from spark_lance.cli.opening import storage_options
from spark_lance.cli.output import as_json, print_pairs, say
from spark_lance.cli.transfer_commands import write_counted
from spark_lance.errors import LanceError, OptionError, SchemaError, TableExistsError
from spark_lance.io.progress import report
from spark_lance.table.paths import VERSIONS_DIR

__all__ = ["convert"]

_DELTA_LOG = "_delta_log"
_ICEBERG = ("metadata", "data")
_READERS = 16
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class _Source:
    """The source of a conversion.

    Attributes:
        kind: "parquet" or "delta".
        rows: its rows, to be read in order.
        count: how many there are, by the metadata of the files or of the log.
        partitions: the columns that came from paths.
    """

    kind: str
    rows: pyarrow.dataset.Dataset
    count: int
    partitions: tuple[str, ...]


def convert(arguments: Arguments) -> int:
    """Make a table of a folder of Parquet files or of a Delta table."""
    system, path = fsspec.core.url_to_fs(arguments.source)
    if not system.exists(path):
        raise OptionError(f"{arguments.source} does not exist")
    if system.exists(f"{path.rstrip('/')}/{VERSIONS_DIR}"):
        raise OptionError(f"{arguments.source} is a Lance table already: dataset.deep_clone copies one")
    is_delta = system.exists(f"{path.rstrip('/')}/{_DELTA_LOG}")
    source = _delta(arguments.source) if is_delta else _parquet(system, path, arguments.source)
    try:
        dataset, written = write_counted(
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
            f"there is a Lance table at {place} already: convert makes a new one"
        ) from error
    if not written == source.count == dataset.count_rows():
        raise SchemaError(
            f"{arguments.source} has {source.count} rows, but {written} were read and the table at "
            f"{arguments.path} has {dataset.count_rows()}: do not use it"
        )
    readers = {
        "source": source.kind,
        "rows": written,
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
            f"{name} looks like an Iceberg table, whose metadata say which files count: read it by Spark"
        )
    hive = pyarrow.dataset.HivePartitioning.discover(infer_dictionary=False, null_fallback=_NO_VALUE)
    try:
        files = pyarrow.dataset.dataset(path, format="parquet", filesystem=system, partitioning=hive)
        fragments = list(files.get_fragments())
        if not fragments:
            raise OptionError(f"{name} holds no Parquet files")
        with ThreadPoolExecutor(_READERS) as pool:
            schemas = [files.schema]
            rows = 0
            for done, fragment in enumerate(_mapped(pool, fragments), 1):
                schemas.append(fragment.physical_schema)
                rows += fragment.metadata.num_rows
                report("looking into files", done, len(fragments), "files")
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, LanceError):
            raise
        raise SchemaError(f"reading {name}: {str(error).splitlines()[0]}") from error
    stored = set(fragments[0].physical_schema.names)
    partitions = tuple(
        field for field in files.schema.names if field not in stored and _in_path(fragments, field)
    )
    return _Source("parquet", files.replace_schema(schema), rows, partitions)


def _mapped(
    pool: ThreadPoolExecutor, fragments: list[pyarrow.dataset.ParquetFileFragment]
) -> Iterator[pyarrow.dataset.ParquetFileFragment]:
    """Yield fragments whose footers have been read, some at a time."""

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
            f"{name} is a Delta table, whose log says which files count: pip install 'spark-lance[delta]'"
        ) from None
    try:
        table = deltalake.DeltaTable(name)
        rows = table.to_pyarrow_dataset()
        partitions = tuple(table.metadata().partition_columns)
    except (deltalake.exceptions.DeltaError, OSError, ValueError) as error:
        raise SchemaError(f"reading the Delta table {name}: {str(error).splitlines()[0]}") from error
    return _Source("delta", rows, rows.count_rows(), partitions)
