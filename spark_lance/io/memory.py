"""A store in the memory of this process, for tests and short-lived tables."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from spark_lance.io.failures import local_failure
from spark_lance.io.fsspec_store import FsspecStore
from spark_lance.io.store import OutputFile

if TYPE_CHECKING:
    import fsspec

Result = TypeVar("Result")

_LOCK = threading.Lock()


@dataclass(frozen=True)
class MemoryStore(FsspecStore):
    """Objects in the memory of this process. There are no transient failures, so nothing is retried."""

    protocol: str = "memory"

    @classmethod
    def uri_options(cls, protocol: str, uri: str) -> dict[str, Any]:
        return {}

    @property
    def can_create(self) -> bool:
        return True

    def put(self, path: str, data: bytes) -> None:
        self._call("writing", path, lambda fs: fs.pipe_file(path, data))

    def create(self, path: str) -> OutputFile:
        return _MemoryOutput(self.fs, path)

    def _create(self, fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> None:
        with _LOCK:
            if fs.exists(path):
                raise FileExistsError(path)
            fs.pipe_file(path, data)

    def _call(
        self,
        doing: str,
        path: str,
        request: Callable[[fsspec.AbstractFileSystem], Result],
        single_attempt: bool = False,
        hedge: bool = False,
    ) -> Result:
        fs = self.fs
        try:
            return request(fs)
        except NotADirectoryError:
            raise
        except OSError as error:
            raise local_failure(error, f"{doing} {path}") from None


class _MemoryOutput:
    """An output that buffers its bytes and stores them on close."""

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
