"""Open the data files of a fragment, and check them against the manifest.

A manifest has the path, version, fields, columns and length of each file. The length saves a request to the
store. It is not used for legacy files (0.1): writers recorded it before they wrote the footer. (Lance table
format, data files.)
"""

from __future__ import annotations

from spark_lance.errors import FormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import DataFileReader, open_file
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.rowids import LINEAGE_FIELDS
from spark_lance.table.format.table_ref import TableRef


def physical_rows(table: TableRef, fragment: table_pb2.DataFragment, bases: Bases | None = None) -> int:
    """Return the number of rows of a fragment, including deleted rows.

    If the manifest does not have the number, it is read from a data file.

    Raises:
        FormatError: the data file is missing or damaged.
    """
    if fragment.physical_rows or not fragment.files:
        return fragment.physical_rows
    return open_data_file(bases or Bases(table), fragment.files[0]).num_rows


def open_data_file(bases: Bases, file: table_pb2.DataFile) -> DataFileReader:
    """Open a data file as the manifest describes it.

    Raises:
        FormatError: the file is missing, damaged, or differs from its description in the manifest.
        UnsupportedFormatError: its version is not supported.
    """
    version = FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
    store, path = bases.data_file(file)
    try:
        return open_file(
            store,
            path,
            version=version,
            size=known_size(file),
            columns=column_numbers(file),
            immutable=True,
        )
    except FileNotFoundError as error:
        raise FormatError("the manifest names a data file that does not exist", path) from error


def known_size(file: table_pb2.DataFile) -> int | None:
    """Return a file's length in bytes if the manifest has a reliable length; else None."""
    version = FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
    return None if version is FileVersion.V0_1 else int(file.file_size_bytes) or None


def column_numbers(file: table_pb2.DataFile) -> dict[int, int]:
    """Return field id -> column number; the number is 0 for legacy files, which have no columns.

    Raises:
        FormatError: the manifest does not have one column for each field.
    """
    version = FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
    if version is FileVersion.V0_1:
        return dict.fromkeys((field for field in file.fields if field >= 0), 0)
    if len(file.fields) != len(file.column_indices):
        raise FormatError(
            f"{len(file.fields)} fields but {len(file.column_indices)} column indices", file.path
        )
    pairs = zip(file.fields, file.column_indices, strict=True)
    return {field: column for field, column in pairs if field >= 0 or field in LINEAGE_FIELDS}
