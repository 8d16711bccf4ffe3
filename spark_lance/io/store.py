"""One file system or object store: the few verbs that tables need, on top of fsspec.

A store is made from a URI and `storage_options`. It can be pickled; the fsspec file system behind it is
made when first used, once per process.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import fsspec
import pyarrow as pa
from fsspec.utils import get_protocol

from spark_lance.errors import StoreError
from spark_lance.io.atomic import put_if_absent
from spark_lance.io.ranges import coalesce
from spark_lance.io.storage_options import fsspec_options

__all__ = ["OutputFile", "Store", "join", "open_store"]

_LOCAL = frozenset({"file", "local"})
# On an object store a request costs about as much as moving this many bytes.
_MAX_GAP = 1 << 18
_MAX_REQUEST = 8 << 20
_PARALLEL_REQUESTS = 16
_INSTALL = {"s3": "spark-lance[s3]", "s3a": "spark-lance[s3]", "gs": "gcsfs", "gcs": "gcsfs"}
_INSTALL |= {"abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}


def join(root: str, *parts: str) -> str:
    """Join path parts with '/', whatever the platform."""
    return "/".join([root.rstrip("/"), *parts])


def open_store(
    uri: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> tuple[Store, str]:
    """Return the store that a URI or local path lives in, and the path inside it.

    Args:
        uri: "/a/b", "relative/b", "file:///a/b", "memory://x", "s3://bucket/key", ...
        storage_options: keyword arguments of the fsspec file system, or Lance's names for them.

    Raises:
        OptionError: a setting is given by two names.
        StoreError: the protocol is unknown, or its driver is not installed.
    """
    text = os.fspath(uri)
    protocol = get_protocol(text)
    store = Store(protocol, fsspec_options(protocol, storage_options or {}))
    path = store.strip(text)
    return store, path.rstrip("/") if path != "/" else path


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
class Store:
    """A file system of one protocol with its options (credentials are kept out of `repr`)."""

    protocol: str
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The fsspec file system; fsspec itself caches the instance."""
        try:
            return fsspec.filesystem(self.protocol, **self.options)
        except ImportError as error:
            package = _INSTALL.get(self.protocol, "its fsspec driver")
            raise StoreError(f"reading {self.protocol}:// needs a driver: pip install '{package}'") from error
        except (TypeError, ValueError) as error:
            raise StoreError(f"cannot open {self.protocol}:// locations: {error}") from error

    @property
    def is_local(self) -> bool:
        """Whether paths are files of this machine."""
        return self.protocol in _LOCAL

    def strip(self, uri: str) -> str:
        """Return the path of a URI inside this store; local paths become absolute."""
        return str(self.fs._strip_protocol(uri))

    def read(self, path: str) -> bytes:
        """Return a whole object.

        Raises:
            FileNotFoundError: there is none.
        """
        return bytes(self.fs.cat_file(path))

    def map(self, path: str) -> pa.Buffer | None:
        """Return a local file as a memory-mapped buffer; None where files cannot be mapped."""
        if not self.is_local:
            return None
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return pa.py_buffer(b"")
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Return the bytes of each (offset, size), in the asked order.

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
                _check_length(path, offset, size, max(0, mapped.size - offset))
            return [mapped.slice(offset, size) for offset, size in ranges]
        requests = coalesce(ranges, _MAX_GAP, _MAX_REQUEST)
        fs = self.fs

        def fetch(offset: int, size: int) -> pa.Buffer:
            data = fs.cat_file(path, start=offset, end=offset + size) if size else b""
            _check_length(path, offset, size, len(data))
            return pa.py_buffer(data)

        if len(requests) == 1:
            blocks = [fetch(requests[0].offset, requests[0].size)]
        else:
            with ThreadPoolExecutor(min(_PARALLEL_REQUESTS, len(requests))) as pool:
                blocks = list(pool.map(lambda r: fetch(r.offset, r.size), requests))
        out: list[pa.Buffer] = [blocks[0]] * len(ranges)
        for request, block in zip(requests, blocks, strict=True):
            for index in request.members:
                out[index] = block.slice(ranges[index][0] - request.offset, ranges[index][1])
        return out

    def size(self, path: str) -> int:
        """Return the length of an object in bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        return int(self.fs.size(path))

    def exists(self, path: str) -> bool:
        """Tell whether an object exists."""
        try:
            self.fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def list(self, directory: str) -> list[str]:
        """Return the base names of the objects directly in a directory; none if it does not exist."""
        if self.is_local:
            try:
                with os.scandir(directory) as entries:
                    return [entry.name for entry in entries if entry.is_file()]
            except FileNotFoundError:
                return []
        try:
            found = self.fs.ls(directory, detail=True, refresh=True)
        except FileNotFoundError:
            return []
        return [str(entry["name"]).rpartition("/")[2] for entry in found if entry["type"] == "file"]

    def put(self, path: str, data: bytes) -> None:
        """Write a whole object, replacing what was there; readers see the old one or the new one."""
        if self.is_local:
            out = _LocalOutput(path)
            try:
                out.write(data)
            except BaseException:
                out.abort()
                raise
            out.close()
        else:
            self.fs.pipe_file(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        """Create an object, whole and only if nothing is there.

        Raises:
            FileExistsError: something is there.
            AtomicPutUnsupportedError: this store cannot do it.
        """
        put_if_absent(self.protocol, self.fs, path, data)

    def delete(self, path: str) -> None:
        """Delete an object; one that does not exist is fine."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def create(self, path: str) -> OutputFile:
        """Start writing a new object, which becomes visible when it is closed."""
        if self.is_local:
            return _LocalOutput(path)
        return _MemoryOutput(self.fs, path) if self.protocol == "memory" else _RemoteOutput(self.fs, path)


def _check_length(path: str, offset: int, asked: int, got: int) -> None:
    if got < asked:
        raise StoreError(
            f"{path} ends after {offset + got} bytes, but bytes up to {offset + asked} were asked for"
        )


class _LocalOutput:
    """Writes to a temporary name beside the final one and renames on close."""

    def __init__(self, path: str) -> None:
        self._final = Path(path)
        self._final.parent.mkdir(parents=True, exist_ok=True)
        self._staged = self._final.with_name(f".tmp{uuid.uuid4().hex}.{self._final.name}")
        self._file = self._staged.open("xb", buffering=1 << 20)
        self._size = 0

    def write(self, data: Any) -> None:
        self._file.write(data)
        self._size += memoryview(data).nbytes

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        self._file.close()
        self._staged.replace(self._final)

    def abort(self) -> None:
        self._file.close()
        self._staged.unlink(missing_ok=True)


class _MemoryOutput:
    """Collects the bytes and stores them on close."""

    def __init__(self, fs: fsspec.AbstractFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._data = io.BytesIO()

    def write(self, data: Any) -> None:
        self._data.write(data)

    def tell(self) -> int:
        return self._data.tell()

    def close(self) -> None:
        self._fs.pipe_file(self._path, self._data.getvalue())

    def abort(self) -> None:
        self._data.close()


class _RemoteOutput:
    """Streams to an object store (multi-part where needed)."""

    def __init__(self, fs: fsspec.AbstractFileSystem, path: str) -> None:
        self._file = fs.open(path, "wb")
        self._size = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self._size += view.nbytes

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        self._file.close()

    def abort(self) -> None:
        self._file.discard()
        # Closing what was discarded must not upload it: the buffer is marked as closed instead.
        self._file.closed = True
