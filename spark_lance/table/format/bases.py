"""Base paths: additional locations of a version's files outside the table's root.

A data file, deletion file or index entry without `base_id` is under the root. With `base_id`, it is under
the BasePath with this id in the manifest (the id is a key; the order of the list has no meaning):

    is_dataset_root    {path}/data/{file}    {path}/_deletions/{file}    {path}/_indices/{uuid}
    otherwise          {path}/{file}         not allowed                 {path}/{uuid}

Blobs outside the table may be below base paths too: {path}/{relative location}.

A path is a URI, an absolute local path, or a path relative to the working directory. (Lance table format,
base paths.)

The author of a table is not trusted. So `open_place` opens a location only if it is near the table or allowed
by the user, and only with the storage options for that location (`io/base_options.py`). All base paths,
external blobs and sources of blobs are opened with it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from spark_lance.errors import BaseNotAllowedError, FormatError, OptionError
from spark_lance.io.base_options import Location
from spark_lance.io.locations import join
from spark_lance.io.store import Store, open_store
from spark_lance.io.stored_names import check_key, check_message, check_path, check_uri
from spark_lance.proto import table_pb2
from spark_lance.table.format.paths import DATA_DIR, INDICES_DIR, deletion_path
from spark_lance.table.format.table_ref import TableRef, TableRefMixin

_DATA_FILE = "data file path"
_TREE = "tree"


@dataclass(frozen=True)
class BasePath:
    """An additional location of files.

    Attributes:
        id: the key of the base path.
        is_dataset_root: whether it is the root of a table, with a folder for each kind of file.
        uri: the absolute location.
        name: the name for users.
        path: the location as stored in the manifest.
    """

    id: int
    is_dataset_root: bool
    uri: str
    name: str | None = None
    path: str = ""

    def message(self) -> table_pb2.BasePath:
        """Return the BasePath message for a manifest."""
        return table_pb2.BasePath(
            id=self.id, name=self.name, is_dataset_root=self.is_dataset_root, path=self.path
        )


@dataclass(frozen=True)
class Bases(TableRefMixin):
    """The locations of a version's files. Can be pickled; stores are opened when needed.

    Attributes:
        table: the table.
        others: the manifest's base paths.
        home: the root of the main line if the table is a branch; else None.
    """

    table: TableRef
    others: tuple[BasePath, ...] = ()
    home: str | None = None
    _opened: dict[int, tuple[Store, str]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, table: TableRef, message: table_pb2.Manifest) -> Bases:
        """Return the locations that a manifest names."""
        branch = join("", _TREE, message.branch) if message.branch else ""
        home = table.root.removesuffix(branch) if branch and table.root.endswith(branch) else None
        return cls(table, _parse_bases(message.base_paths), home)

    def __reduce__(self) -> tuple[type[Bases], tuple[object, ...]]:
        return Bases, (self.table, self.others, self.home)

    def data_file(self, file: table_pb2.DataFile) -> tuple[Store, str]:
        """Return the store and path of a data file.

        Raises:
            FormatError: the manifest has no such base path.
            BaseNotAllowedError: the user did not allow the base path.
            StoreError: the base path needs a driver that is not installed.
        """
        if not file.HasField("base_id"):
            return self.store, join(self.root, DATA_DIR, check_path(file.path, _DATA_FILE))
        store, folder = self.data_folder(file.base_id, check_path(file.path, _DATA_FILE))
        return store, join(folder, file.path)

    def data_folder(self, base_id: int, what: str = "data files") -> tuple[Store, str]:
        """Return the store and the folder of data files in a base path; raises like `data_file`."""
        store, path, is_root = self._open_base(base_id, what)
        return store, join(path, DATA_DIR) if is_root else path

    def deletion_file(self, fragment_id: int, entry: table_pb2.DeletionFile) -> tuple[Store, str]:
        """Return the store and path of a fragment's deletion file.

        Raises:
            FormatError: the manifest has no such base path, or it is not the root of a table.
            StoreError: as `data_file`.
        """
        if not entry.HasField("base_id"):
            return self.store, deletion_path(self.root, fragment_id, entry)
        what = f"the deletion file of fragment {fragment_id}"
        store, path, is_root = self._open_base(entry.base_id, what)
        if not is_root:
            raise FormatError(f"base path {entry.base_id} is not the root of a table", what)
        return store, deletion_path(path, fragment_id, entry)

    def index_dir(self, entry: table_pb2.IndexMetadata) -> tuple[Store, str]:
        """Return the store and directory of an index's files; raises like `data_file`."""
        check_message(entry)
        name = str(uuid.UUID(bytes=entry.uuid.uuid))
        if not entry.HasField("base_id"):
            return self.store, join(self.root, INDICES_DIR, name)
        store, path, is_root = self._open_base(entry.base_id, f"index {entry.name!r}")
        return store, join(path, INDICES_DIR, name) if is_root else join(path, name)

    def external(self, base_id: int, relative: str) -> tuple[Store, str]:
        """Return the store and path of an external object below a base path.

        Raises:
            FormatError: the manifest has no such base path, or the object is not below it.
            StoreError: as `data_file`.
        """
        check_key(relative, f"external blob below base path {base_id}")
        store, path, _ = self._open_base(base_id, relative)
        return store, join(path, relative)

    def outside(self, uri: str) -> tuple[Store, str]:
        """Return the store and path of an external object by its URI, such as an external blob.

        Raises:
            FormatError: `uri` is not a URI.
            BaseNotAllowedError: the user did not allow the location.
            StoreError: as `data_file`.
        """
        return open_place(self._main_line, check_uri(uri, "external blob"), "an external blob")

    def external_base(self, base_id: int, relative: str) -> str:
        """Return the URI of a base path, to which the location of an external object is relative.

        Raises:
            FormatError, StoreError: as `external`.
        """
        store, path, _ = self._open_base(base_id, relative)
        return store.uri(path)

    @property
    def _main_line(self) -> TableRef:
        return TableRef(self.store, self.home or self.root)

    def _open_base(self, number: int, what: str) -> tuple[Store, str, bool]:
        base = next((other for other in self.others if other.id == number), None)
        if base is None:
            ids = ", ".join(str(other.id) for other in self.others) or "none"
            raise FormatError(f"base path {number} is not in the manifest (it has: {ids})", what)
        if number not in self._opened:
            what = f"base path {number}" + (f" ({base.name})" if base.name else "")
            self._opened[number] = open_place(self._main_line, base.uri, what, number)
        return *self._opened[number], base.is_dataset_root


def numbered(bases: Iterable[BasePath], *, keeps_zero: bool = False) -> tuple[BasePath, ...]:
    """Return the base paths of a new table; a base path with id 0 gets the next free id, starting at 1.

    Args:
        bases: the base paths.
        keeps_zero: whether a base path with id 0 keeps it, as pylance's operations do.

    Raises:
        OptionError: two base paths have the same name, path or id; a missing name is a name here.
    """
    bases = tuple(bases)
    explicit = {base.id for base in bases}
    numbered_bases: list[BasePath] = []
    for base in bases:
        next_id = max((other.id for other in numbered_bases), default=0) + 1
        number = base.id
        if not number and not keeps_zero:
            number = next(number for number in count(next_id) if number not in explicit)
        for other in numbered_bases:
            if other.name == base.name or other.path == base.path or other.id == number:
                raise OptionError(f"base path {base.name or base.path!r} is given twice")
        numbered_bases.append(replace(base, id=number, uri=_make_absolute(base.path)))
    return tuple(numbered_bases)


def open_place(table: TableRef, uri: str, what: str, base_id: int | None = None) -> tuple[Store, str]:
    """Open a location that a table refers to, if the user allows it; return the store and the path.

    Args:
        table: the table; for a branch, its main line.
        uri: the location.
        what: a description of the location for the error.
        base_id: the id of the base path, if the location is one.

    Raises:
        BaseNotAllowedError: the location is not near the table, and the user has not listed it.
        StoreError: the location needs a driver that is not installed.
    """
    store = table.store
    location, home = Location.of(uri), store.location(table.root)
    same_store = location.shares_store(home, str(store.options.get("account_name", "")))
    if not (same_store and _is_near(location, home)) and not store.bases.allows(location):
        raise BaseNotAllowedError(
            f"{what} of {table.uri} is at {_redact_uri(uri)}, which is not near the "
            "table: if you trust "
            f"that place, list it in the option allowed_bases, such as allowed_bases={_redact_uri(uri)}"
        )
    options = store.bases.options_for(location, base_id)
    if options is None and same_store:
        options = store.options
    base_store, path = open_store(uri, options)
    return replace(base_store, retry=store.retry), path


def _is_near(location: Location, home: Location) -> bool:
    """Return whether a location in the same store is near a table: on a disk, below its parent folder."""
    if home.scheme != "file":
        return True
    folder = os.path.dirname(home.path)  # noqa: PTH120
    # If the parent folder is the root of the disk, only the table itself is near.
    return location.is_below(home if folder == os.path.dirname(folder) else replace(home, path=folder))  # noqa: PTH120


def _redact_uri(uri: str) -> str:
    """Return a URI without the parts that may be secret: user, password and query."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme.lower() in ("file", "local", "abfs", "abfss"):
        return uri
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _parse_bases(messages: Iterable[table_pb2.BasePath]) -> tuple[BasePath, ...]:
    return tuple(
        BasePath(
            message.id,
            message.is_dataset_root,
            _make_absolute(message.path),
            message.name if message.HasField("name") else None,
            message.path,
        )
        for message in messages
    )


def _make_absolute(path: str) -> str:
    # The path is made absolute because tasks may run in another working directory.
    return path if "://" in path or path.startswith("file:") else os.path.abspath(path)  # noqa: PTH100
