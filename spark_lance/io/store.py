"""The interface of stores: a file system or an object store, with the few verbs that tables need.

    open_store(uri, storage_options)  ->  a Store, and the path inside it

Each kind of store is a class in a module of its own, and `STORES` has a row for each protocol. Every other
protocol for which fsspec has a driver is a `FsspecStore`.

A store can be pickled. Requests that fail for a moment are sent again (`retry`), except for `put_if_absent`,
whose answer must not be guessed. Whatever a driver raises becomes an OSError: FileNotFoundError,
FileExistsError, or a StoreError that says what to do; secrets are left out.
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

from spark_lance.errors import AtomicPutUnsupportedError
from spark_lance.io.base_options import (
    ALLOWED_BASES,
    BASE_STORE_PARAMS,
    BaseOptions,
    Location,
    read_base_options,
)
from spark_lance.io.identity import identity_of
from spark_lance.io.locations import IN_REACH, full_uri, protocol_of, uri_text
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
_OTHERS = "spark_lance.io.fsspec_store:FsspecStore"
_PARALLEL_REQUESTS = 16


def open_store(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    commit_lock: CommitLock | None = None,
) -> tuple[Store, str]:
    """Return the store that a URI or local path lives in, and the path inside it.

    Args:
        uri: "/a/b", "relative/b", "file:///a/b", "memory://x", "s3://bucket/key", ..., or
            "s3+ddb://bucket/key?ddbTableName=name" for a table whose versions are kept in DynamoDB.
        storage_options: keyword arguments of the fsspec file system, or Lance's names for them.
        commit_lock: called with a version, returns a context manager that commits hold; for stores that
            cannot create an object only if it is absent.

    Raises:
        OptionError: a setting is given by two names, or its value cannot be used.
        StoreError: the protocol is unknown, its driver is not installed, or a URI lacks slashes (dbfs:/x).
    """
    text, manifests = split_uri(uri_text(uri))
    text = full_uri(text)
    protocol = protocol_of(text)
    own, rest = split_own(storage_options or {})
    kind = store_class(protocol)
    options = {**kind.options_in(protocol, text), **kind.driver_options(rest)}
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
    """Return the class of the stores of a protocol."""
    module, _, name = STORES.get(protocol, _OTHERS).partition(":")
    return cast("type[Store]", getattr(import_module(module), name))


class OutputFile(Protocol):
    """A new object being written; it becomes visible when closed."""

    def write(self, data: Any) -> None:
        """Append bytes."""

    def tell(self) -> int:
        """Return how many bytes were written."""

    def close(self) -> None:
        """Finish the object and make it visible."""

    def abort(self) -> None:
        """Drop the object; nothing becomes visible."""


@dataclass(frozen=True)
class Store(ABC):
    """A file system or object store with its options (credentials are kept out of `repr`).

    Paths are those that fsspec uses for the protocol: absolute on a disk, `bucket/key` in an object store.

    Attributes:
        protocol: as fsspec names it.
        options: arguments of the fsspec file system.
        retry: how often a failed request is sent again.
        manifests: the external manifest store that commits go through.
        commit_lock: the lock that commits hold.
        conditional_put: False if the user says that the server cannot do it.
        durable: whether new files of this machine are on the disk before they become visible.
        s3_client: the client of S3: auto, obstore or s3fs.
        bases: what the user says about places besides the table's own.
        authority: host, bucket or container as in the URI that the store was opened by.
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
        """Return the pickled state, without the lock: its user gets an error after unpickling."""
        state = {each.name: self.__dict__[each.name] for each in fields(self)}
        if self.commit_lock is not None:
            state["commit_lock"] = _no_lock_here
        return state

    @classmethod
    def options_in(cls, protocol: str, uri: str) -> dict[str, Any]:
        """Return the driver's options that a URI holds, such as host and user of sftp://."""
        return {}

    @classmethod
    def driver_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return storage options as the arguments of the driver; doing it twice changes nothing more.

        Raises:
            OptionError: two names of one setting are given, or a value cannot be used.
        """
        return plain_options(options)

    @property
    @abstractmethod
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system; the process keeps the instance."""

    @cached_property
    def identity(self) -> str:
        """A digest of the credentials, the endpoint and all else that requests are authorised by."""
        return identity_of(self.protocol, {"own": self.options, "bases": vars(self.bases)})

    def cache_key(self, path: str) -> Hashable:
        """Return the key under which a process may cache content of an object: for one identity only."""
        return self.identity, self.uri(path)

    @property
    def is_local(self) -> bool:
        """Whether paths are files of this machine."""
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
        """Return a path of this store as a URI that opens it from anywhere; local paths stay paths."""
        # Paths of HTTP are URIs.
        return path if "://" in path else f"{self.protocol}://{path}"

    def location(self, path: str) -> Location:
        """Return a path of this store for comparison with other locations."""
        location = Location.of(self.uri(path))
        if not self.authority:
            return location
        opened = Location.of(f"{self.protocol}://{self.authority}/")
        return replace(location, authority=opened.authority, account=opened.account)

    def with_bases(
        self,
        allowed: Iterable[str | os.PathLike[str]] | None,
        params: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Store:
        """Return this store for a user who says more about places besides the table's own.

        Args:
            allowed: URIs of places that the table may use, besides those that are listed already.
            params: URI -> the storage options for it.

        Raises:
            OptionError: a value cannot be used.
        """
        if not allowed and not params:
            return self
        more = read_base_options({ALLOWED_BASES: _listed(allowed), BASE_STORE_PARAMS: params or {}})
        return replace(self, bases=more.and_also(self.bases))

    @property
    def storage_options(self) -> dict[str, Any]:
        """The options that open a table near this one."""
        return {**self.options, **self.bases.as_options()}

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return a whole object.

        Raises:
            FileNotFoundError: there is none.
        """

    def map(self, path: str) -> pa.Buffer | None:
        """Return a local file as a memory-mapped buffer; None where files cannot be mapped."""
        return None

    @abstractmethod
    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return the bytes of each (offset, size), in the order of the ranges.

        Near ranges are joined into one request and requests run in parallel; on a local disk the file is
        memory mapped and nothing is copied.

        Raises:
            FileNotFoundError: there is no such object.
            StoreError: the object ends before a range does.
        """

    def size(self, path: str) -> int:
        """Return the length of an object in bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.look_up(path).size

    @abstractmethod
    def look_up(self, path: str) -> StoredObject:
        """Return size and time of an object.

        Raises:
            FileNotFoundError: there is none.
        """

    def exists(self, path: str) -> bool:
        """Return whether an object exists."""
        try:
            self.look_up(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, directory: str) -> list[str]:
        """Return the base names of the objects directly in a directory; none if it does not exist."""
        return [item.name for item in self.list_objects(directory)]

    @abstractmethod
    def list_objects(self, directory: str, recursive: bool = False) -> Sequence[StoredObject]:
        """Return the objects in a directory, and in its subdirectories if `recursive`.

        The order is the store's. None if the directory does not exist.

        Raises:
            StoreError: a directory cannot be listed, the one that was asked for or one below.
        """

    @abstractmethod
    def list_directories(self, directory: str) -> Sequence[str]:
        """Return the base names of the directories directly in a directory; none if it does not exist.

        In an object store a directory is what names of objects have in common up to a '/'.
        """

    @abstractmethod
    def first_entries(self, directory: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Return some entries of a directory: the name, and whether it is a directory."""

    def first_objects(self, directory: str, limit: int) -> Sequence[str]:
        """Return some of the objects in a directory and below, by their paths from there on; not in order.

        Looking is bounded too: S3 is sent one request, other stores list directory by directory until
        `limit` objects and directories were seen.

        Raises:
            NotADirectoryError: the directory is a file of this machine.
        """
        names: list[str] = []
        waiting = [""]
        seen = 0
        while waiting and seen < limit:
            below = waiting.pop(0)
            for name, is_directory in self.first_entries(f"{directory}/{below}".rstrip("/"), limit - seen):
                seen += 1
                (waiting if is_directory else names).append(f"{below}{name}{'/' if is_directory else ''}")
        return names

    def first_listed(self, directory: str, limit: int) -> Sequence[StoredObject] | None:
        """Return the objects in a directory and below whose names are the least, by one request.

        None where that takes more: only S3 lists names in order, except in directory buckets.
        """
        return None

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Write a whole object, replacing an existing one; readers see the old one or the new one."""

    def put_hint(self, path: str, data: bytes) -> None:
        """Write a small object that may be wrong at any time; readers may even see part of two.

        On a disk this is many times cheaper than `put`. A link is replaced; the file that it leads to stays.
        """
        self.put(path, data)

    @abstractmethod
    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Create an object, whole and only if nothing is there. The request is sent once.

        This is the primitive that commits are built on. Exists-then-write is never used, and no request is
        repeated whose answer did not arrive. But the drivers of gs and az repeat requests themselves, and
        HTTP clients do so when a reused connection turns out to be closed. Then a writer can lose against
        itself, so the losing writer has to read the object back.

        With `sync`, bytes and name of a local file are on the disk when this returns; object stores answer
        when an object is safe.

        Raises:
            FileExistsError: something is there; it may be what an earlier request put there.
            AtomicPutUnsupportedError: this store cannot do it.
            StoreError: it failed; the object may be there, or come into being later.
        """

    @abstractmethod
    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, replacing an existing target.

        Raises:
            FileNotFoundError: there is no source.
        """

    @abstractmethod
    def list_to_delete(self, directory: str, root: str, recursive: bool = False) -> Sequence[StoredObject]:
        """Return the objects in a directory that can be deleted; none if it does not exist.

        As `list_objects`, but links of this machine are listed as links, and none is followed on the way from
        the root to the directory or below it; see `spark_lance.io.deletion`.

        Args:
            directory: the root, or a directory below it.
            root: the path that nothing is deleted outside of.
            recursive: whether to list its subdirectories, too.

        Raises:
            StoreError: a directory cannot be listed, or it is not below the root.
        """

    @abstractmethod
    def delete(self, path: str, root: str) -> None:
        """Delete an object below a root, if it exists.

        A local link is deleted itself, not its target. No link is followed between the root and the object.

        Raises:
            StoreError: it is not below the root, the path leads through a link, or it cannot be deleted.
        """

    def delete_many(self, paths: Iterable[str], root: str) -> None:
        """Delete objects below a root, many in a request where the store can; see `delete`.

        Raises:
            StoreError: some could not be deleted; others are gone.
        """
        with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            for _ in pool.map(lambda path: self.delete(path, root), paths):
                pass

    def remove_empty(self, directory: str, root: str) -> None:
        """Remove a directory below a root, and those in it, as far as they are empty; no links are followed.

        Object stores have no directories of their own.
        """

    @abstractmethod
    def create(self, path: str) -> OutputFile:
        """Start writing a new object, which becomes visible when it is closed."""


def refusal(protocol: str) -> AtomicPutUnsupportedError:
    """Return the error for a store without `put_if_absent`; it names the ways out."""
    return AtomicPutUnsupportedError(
        f"this {protocol}:// store has no atomic create-if-absent, so tables there cannot be written safely "
        "by itself. Let all writers use one external manifest store (storage option manifest_store, such as "
        "'sqlite:///shared/manifests.db' or 'dynamodb://table'), or one commit lock (argument commit_lock); "
        f"these protocols need neither: {', '.join(sorted(STORES))}"
    )


def _listed(allowed: Iterable[str | os.PathLike[str]] | None) -> object:
    return allowed if isinstance(allowed, str | os.PathLike) else list(allowed or ())


def _no_lock_here(version: int) -> AbstractContextManager[object]:
    raise AtomicPutUnsupportedError(
        f"version {version} cannot be committed here: a commit lock stays in the process that it was given to"
    )
