"""The location of a new table: a table does not share its folder with anything else.

The folder may be empty, or contain only

    hidden files, those whose name or folder begins with a dot or an underscore: .DS_Store, _SUCCESS, ...
    files of a first write that did not commit: {data file}.lance, {stem}/{blob}.blob in data/

Hidden names that identify another format are not allowed: _delta_log, .hoodie, _spark_metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from spark_lance.errors import LocationInUseError
from spark_lance.table.format.table_ref import TableRef

# Objects that are looked at: one page of a listing on S3.
_LOOKED_AT = 1000
_SHOWN = 3
_OWN = re.compile(r"(tree/.+/)?data/([^/]+\.lance|[^/]+/[^/]+\.blob)")
# (pattern of a path, the format that it identifies), the most specific first.
_KINDS = (
    (re.compile(r"(.*/)?_delta_log/.*"), "a Delta table"),
    (re.compile(r"(.*/)?metadata/[^/]*\.metadata\.json(\.gz)?"), "an Iceberg table"),
    (re.compile(r"(.*/)?\.hoodie/.*"), "a Hudi table"),
    (re.compile(r"(.*/)?_spark_metadata/.*"), "the output of a stream to files"),
    (re.compile(r".*/_versions/[^/]+\.manifest"), "another Lance table below it"),
    (re.compile(r".*\.parquet(\.[a-z0-9]+)?"), "Parquet files"),
    (re.compile(r".*\.orc"), "ORC files"),
    (re.compile(r".*\.avro"), "Avro files"),
    (re.compile(r".*\.csv(\.[a-z0-9]+)?"), "CSV files"),
    (re.compile(r".*\.json(\.[a-z0-9]+)?"), "JSON files"),
)
_MARKERS = tuple(pattern for pattern, _ in _KINDS[:4])


def check_location(table: TableRef) -> None:
    """Refuse a place for a new table that holds something else. One bounded look.

    Raises:
        LocationInUseError: there are other files, or there is a file in place of the folder.
        StoreError: the store cannot be listed.
    """
    try:
        paths = table.store.first_objects(table.root, _LOOKED_AT)
    except NotADirectoryError:
        raise LocationInUseError(f"{table.root} is a file: a table needs a folder of its own") from None
    foreign = sorted(path for path in paths if _is_foreign(path))
    if not foreign:
        return
    kind = _kind_of(paths)
    more = ", ..." if len(foreign) > _SHOWN else ""
    raise LocationInUseError(
        f"{table.uri} is not a Lance table and holds {kind} ({', '.join(foreign[:_SHOWN])}{more}): "
        "write to an empty folder, or delete these files first"
    )


def _is_foreign(path: str) -> bool:
    if any(marker.fullmatch(path) for marker in _MARKERS):
        return True
    hidden = any(part.startswith((".", "_")) for part in path.split("/"))
    return not hidden and _OWN.fullmatch(path) is None


def _kind_of(paths: Iterable[str]) -> str:
    for pattern, kind in _KINDS:
        if any(pattern.fullmatch(path) for path in paths):
            return kind
    return "other files"
