"""New objects while they are written: nothing is visible before they are closed."""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from spark_lance.errors import StoreError
from spark_lance.io.atomic import sync_files
from spark_lance.io.failures import local_failure

if TYPE_CHECKING:
    import fsspec

__all__ = ["LocalOutput", "MemoryOutput", "OutputFile", "RemoteOutput", "S3Output"]

# S3 takes at most 10,000 parts of an object, and some servers want all but the last of one size. A data
# file has 90 GB at most.
_PART_BYTES = 10 << 20
_PARTS_UNDER_WAY = 4


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


class LocalOutput:
    """Writes to a temporary name in the same folder as the final one and renames on close.

    With `sync`, the bytes and the name are on the disk when `close` returns.
    """

    def __init__(self, path: str, sync: bool = False) -> None:
        self._sync = sync
        self._final = Path(path)
        self._staged = self._final.with_name(f".tmp{uuid.uuid4().hex}.{self._final.name}")
        try:
            try:
                self._file = self._staged.open("xb", buffering=1 << 20)
            except FileNotFoundError:
                self._final.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._staged.open("xb", buffering=1 << 20)
        except OSError as error:
            raise self._explained(error) from None
        self._size = 0

    def write(self, data: Any) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._explained(error) from None
        self._size += memoryview(data).nbytes

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        try:
            if self._sync:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            self._staged.replace(self._final)
            if self._sync:
                sync_files([str(self._final)])
        except OSError as error:
            raise self._explained(error) from None

    def abort(self) -> None:
        # Closing flushes the rest to a disk that may be full; the failure does not matter here.
        with contextlib.suppress(OSError):
            self._file.close()
        self._staged.unlink(missing_ok=True)

    def _explained(self, error: OSError) -> OSError:
        return local_failure(error, f"writing {self._final}")


class MemoryOutput:
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


class RemoteOutput:
    """Streams through the driver's own file object, which sends parts and repeats failed ones.

    Args:
        fs: the file system.
        path: where the object is to be.
        guarded: calls a function of the driver and translates what it raises.
    """

    def __init__(
        self, fs: fsspec.AbstractFileSystem, path: str, guarded: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self._guarded = guarded
        self._fs = fs
        self._path = path
        self._file = guarded(lambda: fs.open(path, "wb"))
        self._size = 0

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self._guarded(lambda: self._file.write(view))
        self._size += view.nbytes

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        self._guarded(self._file.close)
        # Files of drivers that send parts say how long these are.
        if self._size <= getattr(self._file, "blocksize", self._size):
            return
        # Drivers send a part again whose answer was lost, and a server may take it for the next one.
        stored = self._guarded(lambda: self._fs.size(self._path))
        if stored != self._size:
            raise StoreError(
                f"{self._path} has {stored} bytes after {self._size} were sent in parts: parts were repeated "
                "or lost; write again"
            )

    def abort(self) -> None:
        with contextlib.suppress(AttributeError):
            self._guarded(self._file.discard)
        # Closing a discarded output must not upload it: the buffer is marked as closed instead.
        self._file.closed = True


class S3Output:
    """Sends a small object in one request, a larger one in parts, several of them at a time.

    Args:
        call: sends an S3 request, (operation, **arguments) -> answer, and repeats it as needed.
        size_of: returns the size of the object if it exists.
        bucket: where the object is to be.
        key: its name.
    """

    def __init__(self, call: Callable[..., Any], size_of: Callable[[], int], bucket: str, key: str) -> None:
        self._call = call
        self._size_of = size_of
        self._place = {"Bucket": bucket, "Key": key}
        self._buffer = bytearray()
        self._size = 0
        self._upload = ""
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: deque[Future[str]] = deque()
        self._etags: list[str] = []

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self._size += view.nbytes
        while view.nbytes:
            room = _PART_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == _PART_BYTES:
                self._send_part()

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        if not self._upload:
            self._call("put_object", **self._place, Body=bytes(self._buffer))
            self._buffer.clear()
            return
        try:
            if self._buffer:
                self._send_part()
            while self._under_way:
                self._collect()
            parts = [{"PartNumber": i, "ETag": etag} for i, etag in enumerate(self._etags, 1)]
            self._complete(parts)
        except BaseException:
            self.abort()
            raise
        self._stop()

    def abort(self) -> None:
        self._stop()
        self._buffer.clear()
        if self._upload:
            # The bucket's life cycle rule removes uploads that cannot be aborted now.
            with contextlib.suppress(OSError):
                self._call("abort_multipart_upload", **self._place, UploadId=self._upload)
            self._upload = ""

    def _send_part(self) -> None:
        if self._pool is None:
            self._upload = str(self._call("create_multipart_upload", **self._place)["UploadId"])
            self._pool = ThreadPoolExecutor(_PARTS_UNDER_WAY)
        if len(self._under_way) == _PARTS_UNDER_WAY:
            self._collect()
        number = len(self._etags) + len(self._under_way) + 1
        self._under_way.append(self._pool.submit(self._put_part, number, bytes(self._buffer)))
        self._buffer.clear()

    def _put_part(self, number: int, body: bytes) -> str:
        place = {**self._place, "UploadId": self._upload, "PartNumber": number}
        return str(self._call("upload_part", **place, Body=body)["ETag"])

    def _collect(self) -> None:
        self._etags.append(self._under_way.popleft().result())

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        try:
            uploaded = {"Parts": parts}
            self._call(
                "complete_multipart_upload", **self._place, UploadId=self._upload, MultipartUpload=uploaded
            )
        except FileNotFoundError:
            # An upload that is gone was completed by an earlier try whose answer was lost. Names of new
            # objects are never used twice, so an object of this size is ours.
            if self._size_of() != self._size:
                raise

    def _stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._under_way.clear()


def put_and_rename(fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> None:
    """Write a file on a file system (sftp, hdfs, ...) so that readers find it whole."""
    directory, _, name = path.rpartition("/")
    staged = f"{directory}/.tmp{uuid.uuid4().hex}.{name}"
    fs.makedirs(directory, exist_ok=True)
    fs.pipe_file(staged, data)
    try:
        fs.mv(staged, path)
    except BaseException:
        with contextlib.suppress(OSError):
            fs.rm_file(staged)
        raise
