"""Writing rows as data files of new fragments. Nothing here commits.

Files get names that no other attempt has, so a task that is tried twice leaves at worst files that no
version refers to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle

import pyarrow as pa

from spark_lance.errors import OptionError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.file.sidecars import sidecar_folder
from spark_lance.file.writer import FileWriter, WrittenFile
from spark_lance.io.store import Store, join
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.paths import DATA_DIR, new_data_file_name
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.blob_sources import BlobSources
from spark_lance.table.writing.limits import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE
from spark_lance.table.writing.references import bounded
from spark_lance.table.writing.targets import FileTarget, own_target

__all__ = [
    "MAX_BYTES_PER_FILE",
    "MAX_ROWS_PER_FILE",
    "delete_fragment_files",
    "delete_operation_files",
    "write_fragments",
]

logger = logging.getLogger(__name__)


def write_fragments(
    batches: Iterable[pa.RecordBatch],
    table: TableRef,
    schema: Schema,
    *,
    version: FileVersion = DEFAULT_VERSION,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    operation: str = "",
    in_memory: bool = False,
    targets: Sequence[FileTarget] = (),
) -> list[bytes]:
    """Write batches of exactly `schema` to new data files of the table at `root`.

    Args:
        batches: the rows; none gives no file. In place of blobs and bytes there may be references, see
            `file.blob_references`, whose bytes are copied.
        schema: fields with the table's ids, in the order of the batches' columns.
        version: version of the data files.
        max_rows_per_file: rows after which a new file (and fragment) is begun.
        max_bytes_per_file: bytes after which a new file is begun; looked at after every batch.
        operation: see `new_data_file_name`.
        in_memory: no batch changes until this returns, see `FileWriter`.
        targets: folders that take the files in turns; that of the table's own root by default.

    Returns:
        Serialized `DataFragment` messages, one per file, with id 0: the commit numbers them.

    Raises:
        SchemaError: a null where the schema allows none, or a type that the version cannot store.
        BlobSourceError: the bytes of a reference cannot be found.
        OSError: the store failed. The files written so far are deleted before any error is raised.
    """
    if max_rows_per_file < 1 or max_bytes_per_file < 1:
        raise OptionError("max_rows_per_file and max_bytes_per_file must be at least 1")
    fragments: list[bytes] = []
    writer: FileWriter | None = None
    sources = BlobSources(table.store, table.root)
    turns = cycle(targets or (own_target(table),))
    target = next(turns)
    written: list[tuple[Store, str]] = []
    rows = 0
    try:
        for batch in bounded(batches, schema, sources):
            for part in _split(batch, max_rows_per_file, writer.rows_written if writer else 0):
                if writer is None:
                    path = join(target.folder, new_data_file_name(operation))
                    writer = FileWriter(
                        target.store,
                        path,
                        schema,
                        version,
                        referenced=sources,
                        is_buffered=in_memory,
                        first_row=rows,
                    )
                writer.write(part)
                rows += part.num_rows
                if writer.rows_written >= max_rows_per_file or writer.has_written(max_bytes_per_file):
                    file, writer = writer.finish(), None
                    written.append((target.store, file.path))
                    fragments.append(_fragment(file, target.base_id))
                    target = next(turns)
        if writer is not None:
            fragments.append(_fragment(writer.finish(), target.base_id))
            writer = None
    except BaseException:
        if writer is not None:
            writer.abort()
        _delete(written, table.root)
        raise
    return fragments


def _split(batch: pa.RecordBatch, limit: int, written: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch where a file that holds `written` rows reaches `limit`, and every `limit` rows after."""
    start = 0
    room = limit - written
    while start < batch.num_rows:
        part = batch.slice(start, room)
        yield part
        start += part.num_rows
        room = limit


def _fragment(file: WrittenFile, base_id: int | None) -> bytes:
    major, minor = file.version.manifest
    data_file = table_pb2.DataFile(
        path=file.path.rpartition("/")[2],
        fields=file.field_ids,
        column_indices=file.column_indices,
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=file.size,
        base_id=base_id,
    )
    return table_pb2.DataFragment(files=[data_file], physical_rows=file.num_rows).SerializeToString()


def delete_fragment_files(table: TableRef, fragments: Sequence[bytes], bases: Bases | None = None) -> None:
    """Delete the data files of fragments that were never committed. Only call it when that is certain.

    A file that cannot be deleted is logged and left; no version refers to it.

    Args:
        table: the table.
        fragments: serialized DataFragment messages.
        bases: the places of files with a base path; those of the table without them are left.
    """
    places = bases or Bases(table)
    base_ids = {base.id for base in places.others}
    files = [file for data in fragments for file in table_pb2.DataFragment.FromString(data).files]
    _delete(
        [places.data_file(f) for f in files if not f.HasField("base_id") or f.base_id in base_ids], table.root
    )


def delete_operation_files(table: TableRef, operation: str) -> None:
    """Delete the data files whose names have the digits of an operation that was never committed.

    This covers the files of killed tasks, too. Files that cannot be listed or deleted are logged and left.
    """
    folder = table.path(DATA_DIR)
    try:
        objects = table.store.list_to_delete(folder, table.root)
    except OSError as error:
        logger.warning("could not look for uncommitted files in %s: %s", folder, error)
        return
    names = [entry.name for entry in objects if operation in entry.name and entry.name.endswith(".lance")]
    _delete([(table.store, join(folder, name)) for name in names], table.root)


def _delete(files: Iterable[tuple[Store, str]], root: str) -> None:
    for store, path in files:
        # The folder of a base path is one that the caller of the write named.
        top = root if path.startswith(f"{root}/") else path.rpartition("/")[0]
        try:
            sidecars = store.list_to_delete(sidecar_folder(path), top)
            store.delete_many((entry.path for entry in sidecars), top)
            store.delete(path, top)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("could not delete the uncommitted file %s: %s", path, error)
