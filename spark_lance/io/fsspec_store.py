"""Any file system for which fsspec has a driver: hdfs, sftp, http, ...

None of them can create a file only if it is absent, so writes need a manifest store or a commit lock.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import fsspec
import pyarrow as pa

from spark_lance.errors import StoreError
from spark_lance.io.counters import count_read
from spark_lance.io.deletion import check_inside
from spark_lance.io.drivers import directory_names, open_driver
from spark_lance.io.failures import Kind, classify_failure, is_transient, safe_cause, translated
from spark_lance.io.ranges import fetch_joined
from spark_lance.io.retry import hedged, run_with_retries
from spark_lance.io.store import OutputFile, Store, atomic_put_error
from spark_lance.io.stored_object import StoredObject, stored_object

Result = TypeVar("Result")


@dataclass(frozen=True)
class FsspecStore(Store):
    """A file system that fsspec has a driver for."""

    @classmethod
    def uri_options(cls, protocol: str, uri: str) -> dict[str, Any]:
        try:
            return dict(fsspec.get_filesystem_class(protocol)._get_kwargs_from_urls(uri))
        except (ImportError, ValueError):
            return {}  # reported when the file system is opened

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        return open_driver(self.protocol, self.options, self.options)

    @property
    def can_create(self) -> bool:
        return False

    def read(self, path: str) -> bytes:
        data = self._call("reading", path, lambda fs: self._read(fs, path), hedge=True)
        count_read(len(data))
        return data

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        if not ranges:
            return []

        def fetch(offset: int, size: int) -> bytes:
            return self._read_range(path, offset, offset + size) if size else b""

        return fetch_joined(path, ranges, fetch)

    def look_up(self, path: str) -> StoredObject:
        info = self._call("looking up", path, lambda fs: fs.info(path), hedge=True)
        if info["type"] == "directory":
            raise FileNotFoundError(f"{path} is a directory")
        return stored_object(info, path)

    def list_objects(self, directory: str, recursive: bool = False) -> Sequence[StoredObject]:
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
        try:
            return self._call("listing", directory, lambda fs: directory_names(fs, directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def first_entries(self, directory: str, limit: int) -> Sequence[tuple[str, bool]]:
        try:
            listing = self._call("listing", directory, lambda fs: fs.ls(directory, detail=True, refresh=True))
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = [(str(e["name"]).rstrip("/").rpartition("/")[2], e["type"] == "directory") for e in listing]
        return [entry for entry in names if entry[0]][:limit]

    def put(self, path: str, data: bytes) -> None:
        self._call("writing", path, lambda fs: _put_and_rename(fs, path, data))

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if not self.conditional_put:
            raise atomic_put_error(self.protocol)
        self._call("creating", path, lambda fs: self._create(fs, path, data), single_attempt=True)

    def copy(self, source: str, target: str) -> None:
        self.put(target, self.read(source))

    def list_to_delete(self, directory: str, root: str, recursive: bool = False) -> Sequence[StoredObject]:
        if directory != root:
            check_inside(directory, root)
        return self.list_objects(directory, recursive)

    def delete(self, path: str, root: str) -> None:
        check_inside(path, root)
        with contextlib.suppress(FileNotFoundError):
            self._call("deleting", path, lambda fs: fs.rm_file(path))

    def create(self, path: str) -> OutputFile:
        call_driver = lambda call: self._call("writing", path, lambda fs: call(), single_attempt=True)  # noqa: E731
        return RemoteOutput(self.fs, path, call_driver)

    def _read(self, fs: fsspec.AbstractFileSystem, path: str) -> bytes:
        return bytes(fs.cat_file(path))

    def _read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a range up to the end of the object; b"" if the range starts after the end."""

        def read(fs: fsspec.AbstractFileSystem) -> bytes:
            try:
                return bytes(fs.cat_file(path, start=start, end=end))
            except Exception as error:
                if classify_failure(error) is Kind.RANGE:
                    return b""
                raise

        return self._call("reading", path, read, hedge=True)

    def _create(self, fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> None:
        """Create an object if it is absent. Raises the driver's errors."""
        raise atomic_put_error(self.protocol)

    def _call(
        self,
        doing: str,
        path: str,
        request: Callable[[fsspec.AbstractFileSystem], Result],
        single_attempt: bool = False,
        hedge: bool = False,
    ) -> Result:
        """Return the result of a request to the driver. Its errors are translated to ours."""
        fs = self.fs
        return self._attempt(doing, path, lambda: request(fs), single_attempt, hedge)

    def _attempt(
        self,
        doing: str,
        path: str,
        send: Callable[[], Result],
        single_attempt: bool = False,
        hedge: bool = False,
    ) -> Result:
        """Return the result of a request.

        Args:
            doing: the action, for messages.
            path: the object.
            send: sends the request.
            single_attempt: send the request only once. Otherwise it is retried after transient errors.
            hedge: the request is a read, so a slow one is sent a second time if the user enabled hedging.
        """
        what = f"{doing} {self.protocol}://{path}"
        wait = self.retry.hedge_seconds if hedge else 0.0

        def attempt() -> Result:
            return hedged(send, wait, is_transient, what) if wait else send()

        try:
            return attempt() if single_attempt else run_with_retries(attempt, self.retry, is_transient, what)
        except Exception as error:  # noqa: BLE001 (drivers raise whatever they like)
            raise self._failure(error, doing, what) from safe_cause(error, self.options)

    def _failure(self, error: Exception, doing: str, what: str) -> Exception:
        """Return the error to raise in place of a driver's error."""
        return translated(error, what, self.options)


class RemoteOutput:
    """An output that writes to the driver's file object, which uploads parts and retries failed ones.

    Args:
        fs: the file system.
        path: path of the new object.
            guarded: calls a function of the driver and translates its errors.
    """

    def __init__(
        self, fs: fsspec.AbstractFileSystem, path: str, call_driver: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self._call_driver = call_driver
        self._fs = fs
        self._path = path
        self._file = call_driver(lambda: fs.open(path, "wb"))
        self._size = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self._call_driver(lambda: self._file.write(view))
        self._size += view.nbytes

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        self._call_driver(self._file.close)
        # File objects of drivers that upload parts have a `blocksize`.
        if self._size <= getattr(self._file, "blocksize", self._size):
            return
        # A driver resends a part if the response was lost, and a server may store it as the next part.
        size = self._call_driver(lambda: self._fs.size(self._path))
        if size != self._size:
            raise StoreError(
                f"{self._path} has {size} bytes after {self._size} were sent in parts: parts were repeated "
                "or lost; write again"
            )

    def abort(self) -> None:
        with contextlib.suppress(AttributeError):
            self._call_driver(self._file.discard)
        # Closing a discarded output must not upload it: the buffer is marked as closed instead.
        self._file.closed = True


def _put_and_rename(fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> None:
    """Write a file on a file system (sftp, hdfs, ...) so that readers never see it incomplete."""
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/{f'.tmp{uuid.uuid4().hex}.{name}'[:255]}"
    fs.makedirs(directory, exist_ok=True)
    fs.pipe_file(temporary, data)
    try:
        fs.mv(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fs.rm_file(temporary)
        raise
