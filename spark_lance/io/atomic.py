"""Creating an object only if it is absent: the one primitive that commits rest on.

Per protocol one function, because fsspec has no portable one. `fsspec`'s own exclusive modes are used
only where they are known to be a conditional write of the store; exists-then-write is never used.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from fsspec import AbstractFileSystem

from spark_lance.errors import AtomicPutUnsupportedError

__all__ = ["PUT_IF_ABSENT", "put_if_absent"]

_memory_lock = threading.Lock()


def _put_local(fs: AbstractFileSystem, path: str, data: bytes) -> None:
    # A hard link appears whole or not at all; an exclusive open would show readers half a file.
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    staged = final.with_name(f".tmp{uuid.uuid4().hex}")
    try:
        with staged.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.link(staged, final)
    finally:
        staged.unlink(missing_ok=True)


def _put_memory(fs: AbstractFileSystem, path: str, data: bytes) -> None:
    with _memory_lock:
        if fs.exists(path):
            raise FileExistsError(path)
        fs.pipe_file(path, data)


def _put_conditional(fs: AbstractFileSystem, path: str, data: bytes) -> None:
    fs.pipe_file(path, data, mode="create")


PUT_IF_ABSENT: Mapping[str, Callable[[AbstractFileSystem, str, bytes], None]] = MappingProxyType(
    {
        "file": _put_local,
        "local": _put_local,
        "memory": _put_memory,
        "s3": _put_conditional,
        "s3a": _put_conditional,
        "gs": _put_conditional,
        "gcs": _put_conditional,
        "abfs": _put_conditional,
        "abfss": _put_conditional,
        "az": _put_conditional,
    }
)


def put_if_absent(protocol: str, fs: AbstractFileSystem, path: str, data: bytes) -> None:
    """Create `path` with `data`, whole and only if nothing is there.

    Raises:
        FileExistsError: the object exists (another writer was first).
        AtomicPutUnsupportedError: the protocol has no such primitive.
    """
    put = PUT_IF_ABSENT.get(protocol)
    if put is None:
        raise AtomicPutUnsupportedError(
            f"{protocol}:// has no atomic create-if-absent, so tables there cannot be written safely; "
            f"these can: {', '.join(sorted(PUT_IF_ABSENT))}"
        )
    put(fs, path, data)
