"""One file system or object store: the few verbs that tables need, on top of fsspec.

A store is made from a URI and `storage_options`. It can be pickled; the fsspec file system behind it is
made when first used, once per process.

Requests that fail for a moment are sent again (`retry`), except for `put_if_absent`, whose answer must not be
guessed. Whatever a driver raises becomes an OSError: FileNotFoundError, FileExistsError, or a StoreError that
says what to do; secrets are left out.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import timezone
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from spark_lance.errors import AtomicPutUnsupportedError, StoreError
from spark_lance.io.atomic import put_if_absent, refusal
from spark_lance.io.base_options import (
    ALLOWED_BASES,
    BASE_STORE_PARAMS,
    BaseOptions,
    Location,
    read_base_options,
)
from spark_lance.io.counters import count_read
from spark_lance.io.deletion import check_inside, delete_file, files_to_delete, remove_empty_folders
from spark_lance.io.drivers import file_system
from spark_lance.io.failures import Kind, is_transient, kind_of, local_failure, presentable, translated
from spark_lance.io.held import let_go
from spark_lance.io.identity import identity_of
from spark_lance.io.locations import IN_REACH, LOCAL, S3, full_uri, join, protocol_of, settings_in, uri_text
from spark_lance.io.manifest_store import CommitLock, ManifestStore
from spark_lance.io.manifest_stores import named_manifest_store, split_uri
from spark_lance.io.outputs import (
    LocalOutput,
    MemoryOutput,
    OutputFile,
    RemoteOutput,
    S3Output,
    put_and_rename,
)
from spark_lance.io.ranges import check_length, fetch_joined
from spark_lance.io.retry import RetryPolicy, retried
from spark_lance.io.s3_requests import DELETES_PER_REQUEST, delete_objects, first_objects
from spark_lance.io.storage_options import DRIVERS, fsspec_options, split_own
from spark_lance.io.stored_object import StoredObject, file_of_disk, files_of_disk, stored_object

if TYPE_CHECKING:
    import fsspec

__all__ = ["OutputFile", "Store", "StoredObject", "join", "open_store"]

Result = TypeVar("Result")

# The end of the name of a directory bucket of S3, which lists names in no order.
_UNORDERED_BUCKET = "--x-s3"
_PARALLEL_REQUESTS = 16
# Neither a link nor a pipe in place of a hint may be written to.
_HINT = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_MAKING = frozenset({"writing", "creating"})


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
    options = {**settings_in(protocol, text), **fsspec_options(protocol, rest)}
    store = Store(
        protocol,
        options,
        retry=own.retry or RetryPolicy.of_requests(),
        manifests=named_manifest_store(
            manifests or own.manifest_store, protocol, options, own.dynamodb_endpoint
        ),
        commit_lock=commit_lock,
        conditional_put=own.conditional_put,
        durable=own.durable,
        bases=own.bases,
        authority="" if protocol in IN_REACH else text.partition("://")[2].partition("/")[0],
    )
    path = store.strip(text)
    return store, path.rstrip("/") if path != "/" else path


@dataclass(frozen=True)
class Store:
    """A file system of one protocol with its options (credentials are kept out of `repr`).

    Attributes:
        protocol: as fsspec names it.
        options: arguments of the fsspec file system.
        retry: how often a failed request is sent again.
        manifests: the external manifest store that commits go through.
        commit_lock: the lock that commits hold.
        conditional_put: False if the user says that the server cannot do it.
        durable: whether new files of this machine are on the disk before they become visible.
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
    bases: BaseOptions = field(default_factory=BaseOptions, repr=False, compare=False, kw_only=True)
    authority: str = field(default="", repr=False, compare=False, kw_only=True)

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state, without the lock: its user gets an error after unpickling."""
        state = {name: self.__dict__[name] for name in self.__dataclass_fields__}
        if self.commit_lock is not None:
            state["commit_lock"] = _no_lock_here
        return state

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system; the process keeps the instance."""
        return file_system(self.protocol, self.options, self.identity)

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
        return self.protocol in LOCAL

    def strip(self, uri: str) -> str:
        """Return the path of a URI inside this store; local paths become absolute."""
        # Local files do without fsspec where that is as short: importing fsspec takes a while.
        if self.is_local and os.sep == "/" and uri.startswith("/"):
            return uri.rstrip("/") or "/"
        return str(self.fs._strip_protocol(uri))

    def uri(self, path: str) -> str:
        """Return a path of this store as a URI that opens it from anywhere; local paths stay paths."""
        # Paths of HTTP are URIs.
        return path if self.is_local or "://" in path else f"{self.protocol}://{path}"

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

    def read(self, path: str) -> bytes:
        """Return a whole object.

        Raises:
            FileNotFoundError: there is none.
        """
        if self.is_local:
            try:
                data = Path(path).read_bytes()
            except OSError as error:
                raise local_failure(error, f"reading {path}") from None
            count_read(len(data))
            return data
        # Without this s3fs asks for the size first.
        whole = {"max_concurrency": 1} if self.protocol in S3 else {}
        data = bytes(self._call("reading", path, lambda fs: fs.cat_file(path, **whole)))
        count_read(len(data))
        return data

    def map(self, path: str) -> pa.Buffer | None:
        """Return a local file as a memory-mapped buffer; None where files cannot be mapped."""
        if not self.is_local:
            return None
        try:
            with Path(path).open("rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    return pa.py_buffer(b"")
                return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError as error:
            raise local_failure(error, f"reading {path}") from None

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return the bytes of each (offset, size), in the order of the ranges.

        Near ranges are joined into one request and requests run in parallel; on a local disk the file is
        memory mapped and nothing is copied.

        Raises:
            FileNotFoundError: there is no such object.
            StoreError: the object ends before a range does.
        """
        if not ranges:
            return []
        mapped = self.map(path)
        if mapped is not None:
            for offset, size in ranges:
                check_length(path, offset, size, max(0, mapped.size - offset))
                count_read(size)
            return [mapped.slice(offset, size) for offset, size in ranges]

        def fetch(offset: int, size: int) -> bytes:
            return self._read_range(path, offset, offset + size) if size else b""

        return fetch_joined(path, ranges, fetch)

    def _read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a range that are there; none if it begins behind the end of the object."""

        def read(fs: fsspec.AbstractFileSystem) -> bytes:
            try:
                return bytes(fs.cat_file(path, start=start, end=end))
            except Exception as error:
                if kind_of(error) is Kind.RANGE:
                    return b""
                raise

        return self._call("reading", path, read)

    def size(self, path: str) -> int:
        """Return the length of an object in bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.look_up(path).size

    def look_up(self, path: str) -> StoredObject:
        """Return size and time of an object.

        Raises:
            FileNotFoundError: there is none.
        """
        if self.protocol in S3:
            # For a missing object s3fs would check whether it is a directory.
            bucket, _, key = path.partition("/")
            head = self._s3("head_object", path, Bucket=bucket, Key=key)
            modified = head["LastModified"].astimezone(timezone.utc)
            return StoredObject(path, int(head["ContentLength"]), modified, head.get("ETag"))
        if self.is_local:
            return file_of_disk(path)
        info = self._call("looking up", path, lambda fs: fs.info(path))
        if info["type"] == "directory":
            raise FileNotFoundError(f"{path} is a directory")
        return stored_object(info, path)

    def exists(self, path: str) -> bool:
        """Return whether an object exists."""
        try:
            self.look_up(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, directory: str) -> list[str]:
        """Return the base names of the objects directly in a directory; none if it does not exist."""
        if self.is_local:
            try:
                with os.scandir(directory) as entries:
                    return [entry.name for entry in entries if entry.is_file()]
            except (FileNotFoundError, NotADirectoryError):
                return []
            except OSError as error:
                raise local_failure(error, f"listing {directory}") from None
        return [stored.name for stored in self.list_objects(directory)]

    def list_objects(self, directory: str, recursive: bool = False) -> Sequence[StoredObject]:
        """Return the objects in a directory, and in its subdirectories if `recursive`.

        The order is the store's. None if the directory does not exist.

        Raises:
            StoreError: a directory cannot be listed, the one that was asked for or one below.
        """
        if self.is_local:
            return list(files_of_disk(directory, recursive))

        def find(fs: fsspec.AbstractFileSystem) -> Iterable[dict[str, Any]]:
            if recursive:
                return list(fs.find(directory, detail=True).values())
            return list(fs.ls(directory, detail=True, refresh=True))

        try:
            entries = self._call("listing", directory, find)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [stored_object(entry, str(entry["name"])) for entry in entries if entry["type"] == "file"]

    def list_directories(self, directory: str) -> Sequence[str]:
        """Return the base names of the directories directly in a directory; none if it does not exist.

        In an object store a directory is what names of objects have in common up to a '/'.
        """
        try:
            entries = self._call(
                "listing", directory, lambda fs: list(fs.ls(directory, detail=True, refresh=True))
            )
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [str(entry["name"]) for entry in entries if entry["type"] == "directory"]
        return [name.rstrip("/").rpartition("/")[2] for name in names]

    def first_objects(self, directory: str, limit: int) -> Sequence[str]:
        """Return some of the objects in a directory and below, by their paths from there on; not in order.

        Looking is bounded too: S3 is sent one request, other stores list directory by directory until
        `limit` objects and directories were seen.

        Raises:
            NotADirectoryError: the directory is a file of this machine.
        """
        if self.protocol in S3:
            prefix = f"{directory.rstrip('/')}/"
            paths = (one.path.removeprefix(prefix) for one in first_objects(self._s3, directory, limit))
            return [path for path in paths if path and not path.endswith("/")]
        if self.is_local and Path(directory).is_file():
            raise NotADirectoryError(directory)
        names: list[str] = []
        waiting = [""]
        seen = 0
        while waiting and seen < limit:
            below = waiting.pop(0)
            for name, is_directory in self._entries(f"{directory}/{below}".rstrip("/"), limit - seen):
                seen += 1
                (waiting if is_directory else names).append(f"{below}{name}{'/' if is_directory else ''}")
        return names

    @property
    def tells_tags(self) -> bool:
        """Whether `first_listed` returns tags of objects."""
        return self.protocol in S3

    def first_listed(self, directory: str, limit: int) -> Sequence[StoredObject] | None:
        """Return the objects in a directory and below whose names are the least, by one request.

        None where that takes more: only S3 lists names in order, but for its directory buckets.
        """
        if not self.tells_tags or directory.partition("/")[0].endswith(_UNORDERED_BUCKET):
            return None
        return first_objects(self._s3, directory, limit)

    def _entries(self, directory: str, limit: int) -> Sequence[tuple[str, bool]]:
        """Return some entries of a directory: the name, and whether it is a directory."""
        if self.is_local:
            try:
                with os.scandir(directory) as entries:
                    return [(entry.name, entry.is_dir()) for entry in islice(entries, limit)]
            except (FileNotFoundError, PermissionError):
                return []  # a volume's lost+found belongs to the system
        try:
            listing = self._call("listing", directory, lambda fs: fs.ls(directory, detail=True, refresh=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [(str(e["name"]).rstrip("/").rpartition("/")[2], e["type"] == "directory") for e in listing]
        return [entry for entry in names if entry[0]][:limit]

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object, replacing an existing one; readers see the old one or the new one."""
        if self.is_local:
            out = LocalOutput(path, self.durable)
            try:
                out.write(data)
            except BaseException:
                out.abort()
                raise
            out.close()
        elif self.protocol in DRIVERS or self.protocol in IN_REACH:
            self._call("writing", path, lambda fs: fs.pipe_file(path, data))
        else:
            self._call("writing", path, lambda fs: put_and_rename(fs, path, data))

    def put_hint(self, path: str, data: bytes) -> None:
        """Write a small object that may be wrong at any time; readers may even see part of two.

        On a disk this is many times cheaper than `put`: a file system that is about to rename a new file over
        an old one first brings its content to the disk. A link is replaced; the file that it leads to stays.
        """
        if not self.is_local:
            self.put(path, data)
            return
        try:
            descriptor = os.open(path, _HINT, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            self.put(path, data)
            return
        try:
            os.write(descriptor, data)
            if os.fstat(descriptor).st_size > len(data):
                os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        """Create an object, whole and only if nothing is there. The request is sent once.

        With `sync`, a local file is on the disk when this returns.

        Raises:
            FileExistsError: something is there; it may be what an earlier request put there.
            AtomicPutUnsupportedError: this store cannot do it.
            StoreError: it failed; the object may be there, or come into being later.
        """
        if not self.conditional_put:
            raise refusal(self.protocol)
        put = lambda fs: put_if_absent(self.protocol, fs, path, data, sync or self.durable)  # noqa: E731
        self._call("creating", path, put, once=True)

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store, replacing an existing target.

        Raises:
            FileNotFoundError: there is no source.
        """
        if self.is_local or self.protocol not in DRIVERS:
            self.put(target, self.read(source))
        else:
            self._call("copying", source, lambda fs: fs.cp_file(source, target))

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
        if self.is_local:
            return files_to_delete(directory, root, recursive)
        if directory != root:
            check_inside(directory, root)
        return self.list_objects(directory, recursive)

    def delete(self, path: str, root: str) -> None:
        """Delete an object below a root, if it exists.

        A local link is deleted itself, not its target. No link is followed between the root and the object.

        Raises:
            StoreError: it is not below the root, the path leads through a link, or it cannot be deleted.
        """
        if self.is_local:
            let_go()
            with contextlib.suppress(FileNotFoundError):
                delete_file(path, root)
            return
        check_inside(path, root)
        with contextlib.suppress(FileNotFoundError):
            self._call("deleting", path, lambda fs: fs.rm_file(path))

    def delete_many(self, paths: Iterable[str], root: str) -> None:
        """Delete objects below a root, many in a request where the store can; see `delete`.

        Raises:
            StoreError: some could not be deleted; others are gone.
        """
        doomed = list(paths)
        if self.protocol not in S3:
            with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
                list(pool.map(lambda path: self.delete(path, root), doomed))
            return
        for path in doomed:
            check_inside(path, root)
        for start in range(0, len(doomed), DELETES_PER_REQUEST):
            delete_objects(self._s3, doomed[start : start + DELETES_PER_REQUEST])

    def remove_empty(self, directory: str, root: str) -> None:
        """Remove a directory below a root, and those in it, as far as they are empty; no links are followed.

        Object stores have no directories of their own.
        """
        if self.is_local:
            remove_empty_folders(directory, root)

    def create(self, path: str) -> OutputFile:
        """Start writing a new object, which becomes visible when it is closed."""
        if self.is_local:
            return LocalOutput(path, self.durable)
        if self.protocol == "memory":
            return MemoryOutput(self.fs, path)
        if self.protocol in S3:
            bucket, _, key = path.partition("/")
            return S3Output(
                lambda operation, **request: self._s3(operation, path, **request),
                lambda: self.size(path),
                bucket,
                key,
            )
        guarded = lambda function: self._call("writing", path, lambda fs: function(), once=True)  # noqa: E731
        return RemoteOutput(self.fs, path, guarded)

    def _s3(self, operation: str, path: str, **request: Any) -> Any:
        """Send one S3 request, and again while it fails for a moment."""
        doing = operation.replace("_", " ")
        return self._call(f"{doing} for", path, lambda fs: fs.call_s3(operation, **request))

    def _call(
        self,
        doing: str,
        path: str,
        request: Callable[[fsspec.AbstractFileSystem], Result],
        once: bool = False,
    ) -> Result:
        """Return the result of a request to the driver; its errors become this package's."""
        fs = self.fs
        if self.protocol in IN_REACH:
            try:
                return request(fs)
            except NotADirectoryError:
                raise
            except OSError as error:
                raise local_failure(error, f"{doing} {path}") from None
        what = f"{doing} {self.protocol}://{path}"
        try:
            if once:
                return request(fs)
            return retried(lambda: request(fs), self.retry, is_transient, what)
        except Exception as error:  # noqa: BLE001 (as above)
            if doing in _MAKING and isinstance(error, FileNotFoundError) and self.protocol in DRIVERS:
                # Nothing else has to be there; not every driver says it.
                raise StoreError(f"{what}: {Kind.NO_BUCKET.value}") from presentable(error, self.options)
            raise translated(error, what, self.options) from presentable(error, self.options)


def _listed(allowed: Iterable[str | os.PathLike[str]] | None) -> object:
    return allowed if isinstance(allowed, str | os.PathLike) else list(allowed or ())


def _no_lock_here(version: int) -> AbstractContextManager[object]:
    raise AtomicPutUnsupportedError(
        f"version {version} cannot be committed here: a commit lock stays in the process that it was given to"
    )
