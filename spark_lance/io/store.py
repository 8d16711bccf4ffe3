"""The store interface: a file system or object store with the operations that tables need.

    open_store(uri, storage_options)  ->  a Store, and the path inside it

Each kind of store is a class in its own module. `STORES` maps protocols to classes. Any other protocol with
an fsspec driver uses `FsspecStore`.

Stores can be pickled. Requests are retried after transient errors (`retry`), except `put_if_absent`: after a
lost response its outcome is unknown. A driver's errors become OSErrors: FileNotFoundError, FileExistsError,
or a StoreError that says what to do. Messages contain no secrets.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from spark_lance.errors import AtomicPutUnsupportedError, OptionTypeError
from spark_lance.io.base_options import (
    ALLOWED_BASES,
    BASE_STORE_PARAMS,
    BaseOptions,
    Location,
    read_base_options,
)
from spark_lance.io.identity import store_digest
from spark_lance.io.locations import IN_REACH, full_uri, uri_protocol, uri_text
from spark_lance.io.manifest_store import CommitLock, ManifestStore
from spark_lance.io.manifest_stores import named_manifest_store, split_uri
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.storage_options import plain_options, split_own
from spark_lance.io.stored_object import StoredObject

if TYPE_CHECKING:
    import fsspec

# protocol -> module and class. A module is imported when one of its protocols is used.
STORES: Mapping[str, str] = MappingProxyType(
    {
        "file": "spark_lance.io.local:LocalStore",
        "local": "spark_lance.io.local:LocalStore",
        "memory": "spark_lance.io.memory:MemoryStore",
        "s3": "spark_lance.io.s3:S3Store",
        "s3a": "spark_lance.io.s3:S3Store",
        "gs": "spark_lance.io.gcs:GcsStore",
        "gcs": "spark_lance.io.gcs:GcsStore",
        "az": "spark_lance.io.azure:AzureStore",
        "abfs": "spark_lance.io.azure:AzureStore",
        "abfss": "spark_lance.io.azure:AzureStore",
    }
)
_DEFAULT_STORE = "spark_lance.io.fsspec_store:FsspecStore"
_PARALLEL_REQUESTS = 16


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    commit_lock: CommitLock | None = None,
) -> tuple[Store, str]:
    """Return the store of a URI or local path, and the path inside the store.

    Args:
        uri: "/a/b", "relative/b", "file:///a/b", "memory://x", "s3://bucket/key", ..., or
            "s3+ddb://bucket/key?ddbTableName=name" for a table whose versions are in DynamoDB.
        storage_options: keyword arguments of the fsspec file system, or Lance's names for them.
        commit_lock: version -> context manager that is held during the commit. Needed only for stores
            that cannot create an object only if it is absent.

    Raises:
        OptionError: one option is set by two names, or a value is invalid.
        StoreError: the protocol is unknown, its driver is not installed, or a URI lacks slashes (dbfs:/x).
    """
    if storage_options is not None and not isinstance(storage_options, Mapping):
        raise OptionTypeError(
            "storage_options is a dict, such as {'aws_region': 'eu-central-1'}, "
            f"not of type {type(storage_options).__name__}"
        )
    text, manifests = split_uri(uri_text(uri))
    text = full_uri(text)
    protocol = uri_protocol(text)
    own, rest = split_own(storage_options or {})
    kind = store_class(protocol)
    options = {**kind.uri_options(protocol, text), **kind.driver_options(rest)}
    store = kind(
        protocol,
        options,
        retry=own.retry or RetryPolicy.of_requests(),
        manifests=named_manifest_store(
            manifests or own.manifest_store, protocol, options, own.dynamodb_endpoint
        ),
        commit_lock=commit_lock,
        conditional_put=own.conditional_put,
        durable=own.durable,
        s3_client=own.s3_client,
        bases=own.bases,
        authority="" if protocol in IN_REACH else text.partition("://")[2].partition("/")[0],
    )
    path = store.strip(text)
    return store, path.rstrip("/") if path != "/" else path


def store_class(protocol: str) -> type[Store]:
    """Return the store class of a protocol."""
    module, _, name = STORES.get(protocol, _DEFAULT_STORE).partition(":")
    return cast("type[Store]", getattr(import_module(module), name))


class OutputFile(Protocol):
    """A new object being written; it becomes visible when closed."""

    def write(self, data: Any) -> None:
        """Append bytes."""

    def tell(self) -> int:
        """Return the number of bytes written."""

    def close(self) -> None:
        """Finish the object and make it visible."""

    def abort(self) -> None:
        """Discard the object; nothing becomes visible."""


@dataclass(frozen=True)
class Store(ABC):
    """A file system or object store with its options. `repr` omits credentials.

    Paths have fsspec's form for the protocol: absolute on a disk, `bucket/key` in an object store.

    Attributes:
        protocol: fsspec's name of the protocol.
        options: arguments of the fsspec file system.
        retry: retry policy of requests.
        manifests: external manifest store for commits, if any.
        commit_lock: lock that commits hold, if any.
        conditional_put: False if the user disabled it because the server does not support it.
        durable: whether new local files are flushed to the disk before they become visible.
        s3_client: S3 client: auto, obstore or s3fs.
        bases: options of locations outside the table.
        authority: host, bucket or container in the URI that the store was opened with.
    """

    protocol: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    retry: RetryPolicy = field(default_factory=RetryPolicy.of_requests, repr=False, kw_only=True)
    manifests: ManifestStore | None = field(default=None, repr=False, kw_only=True)
    commit_lock: CommitLock | None = field(default=None, repr=False, compare=False, kw_only=True)
    conditional_put: bool = field(default=True, repr=False, kw_only=True)
    durable: bool = field(default=False, repr=False, kw_only=True)
    s3_client: str = field(default="auto", repr=False, kw_only=True)
    bases: BaseOptions = field(default_factory=BaseOptions, repr=False, compare=False, kw_only=True)
    authority: str = field(default="", repr=False, compare=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle. It replaces the lock with one that raises an error."""
        state = {each.name: self.__dict__[each.name] for each in fields(self)}
        if self.commit_lock is not None:
            state["commit_lock"] = _refuse_commit
        return state

    @classmethod
    def uri_options(cls, protocol: str, uri: str) -> dict[str, Any]:
        """Return the driver's options that a URI contains, such as host and user of sftp://."""
        return {}

    @classmethod
    def driver_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return storage options as arguments of the driver. The conversion is idempotent.

        Raises:
            OptionError: one option is set by two names, or a value is invalid.
        """
        return plain_options(options)

    @property
    @abstractmethod
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system. The process caches the instance."""

    @cached_property
    def identity(self) -> str:
        """A digest of the credentials, the endpoint and everything else that authorises requests."""
        return store_digest(self.protocol, {"own": self.options, "bases": vars(self.bases)})

    def cache_key(self, path: str) -> Hashable:
        """Return the key for caching an object's content in this process. It includes the identity."""
        return self.identity, self.uri(path)

    @property
    def is_local(self) -> bool:
        """Whether paths are local files."""
        return False

    @property
    def can_create(self) -> bool:
        """Whether stores of this kind can create an object only if it is absent."""
        return True

    @property
    def lists_tags(self) -> bool:
        """Whether `first_listed` returns tags of objects."""
        return False

    def strip(self, uri: str) -> str:
        """Return the path of a URI inside this store; local paths become absolute."""
        return str(self.fs._strip_protocol(uri))

    def uri(self, path: str) -> str:
        """Return the full URI of a path in this store. Local paths are returned unchanged."""
        # HTTP paths are URIs already.
        return path if "://" in path else f"{self.protocol}://{path}"

    def location(self, path: str) -> Location:
        """Return a path of this store as a `Location`, for comparison with other locations."""
        location = Location.of(self.uri(path))
        if not self.authority:
            return location
        store_location = Location.of(f"{self.protocol}://{self.authority}/")
        return replace(location, authority=store_location.authority, account=store_location.account)

    def with_bases(
        self,
        allowed: Iterable[str | os.PathLike[str]] | None,
        params: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Store:
        """Return this store with further options for locations outside the table.

        Args:
            allowed: URIs of further locations that the table may use.
            params: URI -> its storage options.

        Raises:
            OptionError: a value is invalid.
        """
        if not allowed and not params:
            return self
        more = read_base_options({ALLOWED_BASES: _uri_list(allowed), BASE_STORE_PARAMS: params or {}})
        return replace(self, bases=more.and_also(self.bases))

    @property
    def storage_options(self) -> dict[str, Any]:
        """The storage options to open another table in this store."""
        return {**self.options, **self.bases.as_options()}

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the bytes of a whole object.

        Raises:
            FileNotFoundError: the object does not exist.
        """

    def map(self, path: str) -> pa.Buffer | None:
        """Return a local file as a memory-mapped buffer; None where files cannot be mapped."""
        return None

    @abstractmethod
    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return the bytes of each (offset, size), in the order of the ranges.

        Nearby ranges are joined into one request, and requests run in parallel. A local file is
        memory-mapped, without a copy.

        Raises:
            FileNotFoundError: the object does not exist.
            StoreError: the object ends before a range does.
        """

    def size(self, path: str) -> int:
        """Return the size of an object in bytes.

        Raises:
            FileNotFoundError: the object does not exist.
        """
        return self.look_up(path).size

    @abstractmethod
    def look_up(self, path: str) -> StoredObject:
        """Return the size and time of an object.

        Raises:
            FileNotFoundError: the object does not exist.
        """

    def exists(self, path: str) -> bool:
        """Return whether an object exists."""
        try:
            self.look_up(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, directory: str) -> list[str]:
        """Return the base names of the objects directly in a directory; [] if it does not exist."""
        return [item.name for item in self.list_objects(directory)]

    @abstractmethod
    def list_objects(self, directory: str, recursive: bool = False) -> Sequence[StoredObject]:
        """Return the objects in a directory, and in its subdirectories if `recursive`.

        The order is undefined. The list is empty if the directory does not exist.

        Raises:
            StoreError: the directory or one of its subdirectories cannot be listed.
        """

    @abstractmethod
    def list_directories(self, directory: str) -> Sequence[str]:
        """Return the base names of the direct subdirectories of a directory; [] if it does not exist.

        In an object store a directory is a common prefix of object names that ends with '/'.
        """

    @abstractmethod
    def first_entries(self, directory: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Return up to `limit` entries of a directory: the name, and whether it is a directory."""

    def first_objects(self, directory: str, limit: int) -> Sequence[str]:
        """Return the relative paths of up to `limit` objects below a directory, in no order.

        The search is bounded, too: S3 needs one request, and other stores list one directory after another
        until they have seen `limit` objects and directories.

        Raises:
            NotADirectoryError: the path is a local file.
        """
        names: list[str] = []
        waiting = [""]
        entry_count = 0
        while waiting and entry_count < limit:
            below = waiting.pop(0)
            for name, is_directory in self.first_entries(
                f"{directory}/{below}".rstrip("/"), limit - entry_count
            ):
                entry_count += 1
                (waiting if is_directory else names).append(f"{below}{name}{'/' if is_directory else ''}")
        return names

    def first_listed(self, directory: str, limit: int) -> Sequence[StoredObject] | None:
        """Return the first objects below a directory in name order, with one request.

        Returns None if the store needs more requests: only S3 lists names in order, except in directory
        buckets.
        """
        return None

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write or replace a whole object atomically: readers see the old content or the new content."""

    def put_hint(self, path: str, data: bytes) -> None:
        """Write a small object that readers do not trust. The write is not atomic: readers may see a mixture.

        On a disk this is many times cheaper than `put`. A link is replaced; its target is not changed.
        """
        self.put(path, data)

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Create an object atomically, only if it is absent. The request is sent once.

        Commits are built on this operation. It never checks for existence and then writes, and it does not
        retry after a lost response. But the drivers of gs and az retry requests themselves, and HTTP clients
        do so when a reused connection turns out to be closed. Then a writer can conflict with its own earlier
        request, so a writer that gets FileExistsError must read the object back.

        With `sync`, the bytes and the directory entry of a local file are on the disk when this returns.
        Object stores respond only when an object is durable.

        Raises:
            FileExistsError: the object exists. It may come from an earlier attempt of this request.
            AtomicPutUnsupportedError: this store does not support the operation.
            StoreError: the request failed. The object may exist, or appear later.
        """

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, replacing an existing target.

        Raises:
            FileNotFoundError: the source does not exist.
        """

    @abstractmethod
    def list_to_delete(self, directory: str, root: str, recursive: bool = False) -> Sequence[StoredObject]:
        """Return the objects in a directory that can be deleted; empty if the directory does not exist.

        Like `list_objects`, but local links are listed as links, and no link below the root is followed; see
        `spark_lance.io.deletion`.

        Args:
            directory: the root, or a directory below it.
            root: path that contains everything that may be deleted.
            recursive: whether to list subdirectories, too.

        Raises:
            StoreError: a directory cannot be listed, or it is not below the root.
        """

    @abstractmethod
    def delete(self, path: str, root: str) -> None:
        """Delete an object below a root, if it exists.

        A local link is deleted itself, not its target. Links between the root and the object are not
        followed.

        Raises:
            StoreError: the object is not below the root, its path leads through a link, or it cannot be
                deleted.
        """

    def delete_many(self, paths: Iterable[str], root: str) -> None:
        """Delete objects below a root, many per request where the store supports it; see `delete`.

        Raises:
            StoreError: some objects could not be deleted. The others were deleted.
        """
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            for _ in pool.map(lambda path: self.delete(path, root), paths):
                pass

    def remove_empty(self, directory: str, root: str) -> None:
        """Remove a directory below a root and its subdirectories where empty. Links are not followed.

        Object stores have no directories, so the default does nothing.
        """

    @abstractmethod
    def create(self, path: str) -> OutputFile:
        """Start writing a new object, which becomes visible when it is closed."""


def atomic_put_error(protocol: str) -> AtomicPutUnsupportedError:
    """Return the error for a store without `put_if_absent`. Its message lists the alternatives."""
    return AtomicPutUnsupportedError(
        f"this {protocol}:// store has no atomic create-if-absent, so tables there cannot be written safely "
        "by itself. Let all writers use one external manifest store (storage option manifest_store, such as "
        "'sqlite:///shared/manifests.db' or 'dynamodb://table'), or one commit lock (argument commit_lock); "
        f"these protocols need neither: {', '.join(sorted(STORES))}"
    )


def _uri_list(allowed: Iterable[str | os.PathLike[str]] | None) -> object:
    return allowed if isinstance(allowed, str | os.PathLike) else list(allowed or ())


def _refuse_commit(version: int) -> AbstractContextManager[object]:
    raise AtomicPutUnsupportedError(
        f"version {version} cannot be committed here: a commit lock stays in the process that it was given to"
    )
