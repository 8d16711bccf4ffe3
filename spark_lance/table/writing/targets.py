"""The folders of new data files, under the table's own root or in base paths; and the limits of files.

Users refer to a base path by its name or its path in the manifest. (Lance table format, base paths.)

A new table does not share its folder with anything else. The folder may be empty, or contain only

    hidden files, whose name or folder begins with a dot or an underscore: .DS_Store, _SUCCESS, ...
    files of a first write that did not commit: {data file}.lance, {stem}/{blob}.blob in data/

Hidden names that identify another format are not allowed: _delta_log, .hoodie, _spark_metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_lance.errors import LocationInUseError, OptionError
from spark_lance.io.store import Store
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.paths import DATA_DIR
from spark_lance.table.format.table_ref import TableRef

# The number of objects to list: one page of a listing on S3.
_MAX_LISTED = 1000
_MAX_SHOWN_FILES = 3
_TABLE_FILES = re.compile(r"(tree/.+/)?data/([^/]+\.lance|[^/]+/[^/]+\.blob)")
# (pattern of a path, the format that it identifies), the most specific first.
_FORMATS = (
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
_MARKERS = tuple(pattern for pattern, _ in _FORMATS[:4])


def check_location(table: TableRef) -> None:
    """Check that the folder of a new table contains nothing else, with one bounded listing.

    Raises:
        LocationInUseError: the folder has other files, or the location is a file.
        StoreError: the store cannot be listed.
    """
    try:
        paths = table.store.first_objects(table.root, _MAX_LISTED)
    except NotADirectoryError:
        raise LocationInUseError(f"{table.root} is a file: a table needs a folder of its own") from None
    foreign = sorted(path for path in paths if _is_foreign(path))
    if not foreign:
        return
    kind = _describe_files(paths)
    more = ", ..." if len(foreign) > _MAX_SHOWN_FILES else ""
    raise LocationInUseError(
        f"{table.uri} is not a Lance table and holds {kind} ({', '.join(foreign[:_MAX_SHOWN_FILES])}{more}): "
        "write to an empty folder, or delete these files first"
    )


def _is_foreign(path: str) -> bool:
    if any(marker.fullmatch(path) for marker in _MARKERS):
        return True
    hidden = any(part.startswith((".", "_")) for part in path.split("/"))
    return not hidden and _TABLE_FILES.fullmatch(path) is None


def _describe_files(paths: Iterable[str]) -> str:
    for pattern, kind in _FORMATS:
        if any(pattern.fullmatch(path) for path in paths):
            return kind
    return "other files"


MAX_ROWS_PER_FILE = 1 << 20
MAX_BYTES_PER_FILE = 90 << 30


@dataclass(frozen=True)
class FileTarget:
    """A folder for data files.

    Attributes:
        store, folder: the location of the folder.
        base_id: the id of the base path; None for the table's own root.
    """

    store: Store
    folder: str
    base_id: int | None = None


def own_target(table: TableRef) -> FileTarget:
    """Return the folder of data files under a table's root."""
    return FileTarget(table.store, table.path(DATA_DIR))


def choose_targets(
    bases: Bases, names: Sequence[str] | None = None, every: bool | None = None
) -> tuple[FileTarget, ...]:
    """Return the folders among which new data files are distributed in turns.

    Args:
        bases: the base paths of the table.
        names: names or paths of base paths; the table's own URI means its root. None or empty means only the
            table's root.
        every: True for the table's root and all base paths, False for all base paths; excludes `names`.

    Raises:
        OptionError: a base path does not exist, `names` and `every` are both set, or the table has no base
            paths.
        StoreError: a base path needs a driver that is not installed.
    """
    own = own_target(bases.table)
    if every is not None:
        if names:
            raise OptionError("give target_bases or target_all_bases, not both")
        others = tuple(_target(bases, number) for number in sorted(base.id for base in bases.others))
        if not others and not every:
            raise OptionError("the table has no base paths to write to")
        return (own, *others) if every else others
    targets = []
    roots = {bases.root, bases.store.uri(bases.root)}
    for name in [names] if isinstance(names, str) else names or ():
        matching = [base.id for base in bases.others if base.name == name]
        matching += [base.id for base in bases.others if name in (base.uri, base.path)]
        if matching:
            targets.append(_target(bases, matching[0]))
        elif name.rstrip("/") in roots:
            targets.append(own)
        else:
            base_names = ", ".join(repr(base.name or base.path) for base in bases.others) or "none"
            raise OptionError(f"base path {name!r} not found; the table has: {base_names}")
    return tuple(targets) or (own,)


def _target(bases: Bases, number: int) -> FileTarget:
    store, folder = bases.data_folder(number)
    return FileTarget(store, folder, number)
