"""Create an object only if it is absent: the primitive that commits are built on.

Each protocol has its own function, because fsspec has no portable one:

    file           a temporary file, then a hard link to the final name
    memory         a lock of this process
    s3             If-None-Match: *, with the object or with the request that completes its parts
    gs             ifGenerationMatch=0, with the object or with the request that begins a resumable upload
    az             If-None-Match: *, with the blob or with its list of blocks

The drivers send these conditions for `mode="create"`; exists-then-write is never used. None of these
functions repeats a request whose answer it did not get. But the drivers of gs and az repeat requests
themselves, and HTTP clients do so when a reused connection turns out to be closed. Then a writer can lose
against itself, so the losing writer has to read the object back.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from spark_lance.errors import AtomicPutUnsupportedError
from spark_lance.io.failures import Kind, kind_of

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["PUT_IF_ABSENT", "put_if_absent", "refusal", "sync_files"]

_memory_lock = threading.Lock()


def _put_local(fs: AbstractFileSystem, path: str, data: bytes, sync: bool = False) -> None:
    # A hard link appears whole or not at all; an exclusive open would show readers half a file. The check
    # beforehand only saves work. Without `sync` nothing is forced to the disk: a killed process loses no
    # written data, and the data files of a manifest are not forced either.
    if Path(path).exists():
        raise FileExistsError(path)
    directory = path.rpartition("/")[0]
    staged = Path(f"{directory}/.tmp{uuid.uuid4().hex}")
    try:
        try:
            _write_new(staged, data, sync)
        except FileNotFoundError:
            Path(directory).mkdir(parents=True, exist_ok=True)
            _write_new(staged, data, sync)
        os.link(staged, path)
    finally:
        staged.unlink(missing_ok=True)
    if sync:
        _sync_directory(directory)


def _write_new(path: Path, data: bytes, sync: bool) -> None:
    with path.open("xb", buffering=0) as out:
        left = memoryview(data)
        while left:
            left = left[out.write(left) :]
        if sync:
            os.fsync(out.fileno())


def _sync_directory(path: str) -> None:
    """Force the names in a directory to the disk, and those in the two above it, which may be as new."""
    for place in (Path(path), *list(Path(path).parents)[:2]):
        try:
            descriptor = os.open(place, os.O_RDONLY)
        except PermissionError:
            return  # this system opens no directories
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_files(paths: Iterable[str]) -> None:
    """Force files of this machine and their names to the disk; those that are gone are passed over."""
    directories = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError), Path(path).open("rb") as file:
            os.fsync(file.fileno())
            directories.add(path.rpartition("/")[0])
    for directory in sorted(directories):
        _sync_directory(directory)


def _put_memory(fs: AbstractFileSystem, path: str, data: bytes, sync: bool = False) -> None:
    with _memory_lock:
        if fs.exists(path):
            raise FileExistsError(path)
        fs.pipe_file(path, data)


def _put_conditional(fs: AbstractFileSystem, path: str, data: bytes, sync: bool = False) -> None:
    fs.pipe_file(path, data, mode="create")


PUT_IF_ABSENT: Mapping[str, Callable[[AbstractFileSystem, str, bytes, bool], None]] = MappingProxyType(
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


def put_if_absent(protocol: str, fs: AbstractFileSystem, path: str, data: bytes, sync: bool = False) -> None:
    """Create `path` with `data`, whole and only if nothing is there.

    With `sync`, bytes and name of a local file are on the disk when this returns; object stores answer when
    an object is safe.

    Raises:
        FileExistsError: the object exists (another writer was first).
        AtomicPutUnsupportedError: the protocol or the server has no such primitive.
        Exception: whatever else the driver raises; the object may or may not be there.
    """
    put = PUT_IF_ABSENT.get(protocol)
    if put is None:
        raise refusal(protocol)
    try:
        put(fs, path, data, sync)
    except Exception as error:
        if kind_of(error) is Kind.UNSUPPORTED:
            raise refusal(protocol) from error
        raise


def refusal(protocol: str) -> AtomicPutUnsupportedError:
    """Return the error for a store without the primitive; it names the ways out."""
    return AtomicPutUnsupportedError(
        f"this {protocol}:// store has no atomic create-if-absent, so tables there cannot be written safely "
        "by itself. Let all writers use one external manifest store (storage option manifest_store, such as "
        "'sqlite:///shared/manifests.db' or 'dynamodb://table'), or one commit lock (argument commit_lock); "
        f"these protocols need neither: {', '.join(sorted(PUT_IF_ABSENT))}"
    )
