"""Files of this machine.

To create a file only if it is absent, the store writes a temporary file and hard-links it to the final name.
Deletion does not follow links, see `spark_lance.io.deletion`. fsspec is slow to import, so it is imported
only where needed.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from spark_lance.io.counters import count_read
from spark_lance.io.deletion import delete_file, files_to_delete, remove_empty_folders
from spark_lance.io.drivers import directory_names, open_driver
from spark_lance.io.failures import local_failure
from spark_lance.io.handle_cache import evict_all
from spark_lance.io.ranges import check_length
from spark_lance.io.store import OutputFile, Store, atomic_put_error
from spark_lance.io.stored_object import StoredObject

if TYPE_CHECKING:
    import fsspec

_T = TypeVar("_T")
_FOLDER_ATTEMPTS = 10
# If the hint's path is a link or a pipe, it must not be written to.
_HINT_FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


@dataclass(frozen=True)
class LocalStore(Store):
    """Local disks and mounted file systems."""

    protocol: str = "file"

    @property
    def is_local(self) -> bool:
        return True

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        return open_driver(self.protocol, self.options, self.options)

    def strip(self, uri: str) -> str:
        if os.sep == "/" and uri.startswith("/"):
            return uri.rstrip("/") or "/"
        return super().strip(uri)

    def uri(self, path: str) -> str:
        return path

    def read(self, path: str) -> bytes:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise local_failure(error, f"reading {path}") from None
        count_read(len(data))
        return data

    def map(self, path: str) -> pa.Buffer | None:
        return _map_file(path)

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        if not ranges:
            return []
        file = _map_file(path)
        for offset, size in ranges:
            check_length(path, offset, size, max(0, file.size - offset))
            count_read(size)
        return [file.slice(offset, size) for offset, size in ranges]

    def look_up(self, path: str) -> StoredObject:
        return _stat_file(path)

    def list(self, directory: str) -> list[str]:
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise local_failure(error, f"listing {directory}") from None

    def list_objects(self, directory: str, recursive: bool = False) -> Sequence[StoredObject]:
        return [*_list_files(directory, recursive)]

    def list_directories(self, directory: str) -> Sequence[str]:
        try:
            return directory_names(self.fs, directory)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise local_failure(error, f"listing {directory}") from None

    def first_entries(self, directory: str, limit: int) -> Sequence[tuple[str, bool]]:
        try:
            with os.scandir(directory) as entries:
                return [(entry.name, entry.is_dir()) for entry in islice(entries, limit)]
        except (FileNotFoundError, PermissionError):
            return []  # a volume's lost+found belongs to the system

    def first_objects(self, directory: str, limit: int) -> Sequence[str]:
        if Path(directory).is_file():
            raise NotADirectoryError(directory)
        return super().first_objects(directory, limit)

    def put(self, path: str, data: bytes) -> None:
        out = LocalOutput(path, self.durable)
        try:
            out.write(data)
        except BaseException:
            out.abort()
            raise
        out.close()

    def put_hint(self, path: str, data: bytes) -> None:
        # A file system flushes a new file to the disk before it renames it over an old one; a write in place
        # avoids this.
        try:
            descriptor = os.open(path, _HINT_FLAGS, 0o666)
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
        if not self.conditional_put:
            raise atomic_put_error(self.protocol)
        try:
            _put_if_absent(path, data, sync or self.durable)
        except NotADirectoryError:
            raise
        except OSError as error:
            raise local_failure(error, f"creating {path}") from None

    def copy(self, source: str, target: str) -> None:
        self.put(target, self.read(source))

    def list_to_delete(self, directory: str, root: str, recursive: bool = False) -> Sequence[StoredObject]:
        return files_to_delete(directory, root, recursive)

    def delete(self, path: str, root: str) -> None:
        evict_all()
        with contextlib.suppress(FileNotFoundError):
            delete_file(path, root)

    def remove_empty(self, directory: str, root: str) -> None:
        remove_empty_folders(directory, root)

    def create(self, path: str) -> OutputFile:
        return LocalOutput(path, self.durable)


class LocalOutput:
    """An output that writes a temporary file in the target folder and renames it on close.

    With `sync`, the bytes and the directory entry are on the disk when `close` returns.
    """

    def __init__(self, path: str, sync: bool = False) -> None:
        self._sync = sync
        self._final = Path(path)
        # A name has at most 255 bytes on most file systems.
        self._temporary = self._final.with_name(f".tmp{uuid.uuid4().hex}.{self._final.name}"[:255])
        try:
            self._file = _with_folder(
                self._final.parent, lambda: self._temporary.open("xb", buffering=1 << 20)
            )
        except OSError as error:
            raise self._describe_failure(error) from None
        self._size = 0

    def write(self, data: Any) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._describe_failure(error) from None
        self._size += memoryview(data).nbytes

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        try:
            if self._sync:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self._final)
            if self._sync:
                sync_files([str(self._final)])
        except OSError as error:
            raise self._describe_failure(error) from None

    def abort(self) -> None:
        # Closing flushes the buffer to a disk that may be full; that failure does not matter here.
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def _describe_failure(self, error: OSError) -> OSError:
        return local_failure(error, f"writing {self._final}")


def _map_file(path: str) -> pa.Buffer:
    try:
        with Path(path).open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return pa.py_buffer(b"")
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise local_failure(error, f"reading {path}") from None


def _stat_file(path: str) -> StoredObject:
    """Return the size and time of a local file.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    try:
        status = Path(path).stat()
    except NotADirectoryError:
        raise
    except OSError as error:
        raise local_failure(error, f"looking up {path}") from None
    if stat.S_ISDIR(status.st_mode):
        raise FileNotFoundError(f"{path} is a directory")
    return StoredObject(path, status.st_size, datetime.fromtimestamp(status.st_mtime, timezone.utc))


def _list_files(directory: str, recursive: bool) -> Iterator[StoredObject]:
    """Yield the files in a local directory, and below it if `recursive`; nothing if it does not exist.

    A link to a file is listed as that file. Links to directories are skipped, because they may lead to
    another table. Unlike fsspec's `find`, an unreadable directory is an error: a caller that takes the
    listing as complete would lose files.

    Raises:
        StoreError: a directory cannot be listed.
    """
    subdirectories = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    subdirectories.append(entry.name)
                elif entry.is_file():
                    # It may be deleted while the directory is listed.
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        modified = datetime.fromtimestamp(status.st_mtime, timezone.utc)
                        yield StoredObject(f"{directory}/{entry.name}", status.st_size, modified)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise local_failure(error, f"listing {directory}") from None
    for name in subdirectories if recursive else ():
        yield from _list_files(f"{directory}/{name}", recursive)


def _with_folder(folder: Path, create: Callable[[], _T]) -> _T:
    """Call `create`, which creates a file, and create its folder if it does not exist.

    A clean-up that removes empty folders can remove the new folder before the file is in it, so this repeats.
    """
    for _ in range(_FOLDER_ATTEMPTS):
        try:
            return create()
        except FileNotFoundError:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                folder.mkdir(parents=True, exist_ok=True)
    return create()


def _put_if_absent(path: str, data: bytes, sync: bool) -> None:
    # A hard link is atomic; with an exclusive open, readers could see half a file. The `exists` check only
    # saves work. Without `sync` nothing is flushed to the disk: a killed process loses no written data, and
    # the data files of a manifest are not flushed either.
    if Path(path).exists():
        raise FileExistsError(path)
    directory = path.rpartition("/")[0]
    temporary = Path(f"{directory}/.tmp{uuid.uuid4().hex}")
    try:
        _with_folder(Path(directory), lambda: _write_new(temporary, data, sync))
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        _sync_directory(directory)


def _write_new(path: Path, data: bytes, sync: bool) -> None:
    with path.open("xb", buffering=0) as out:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[out.write(remaining) :]
        if sync:
            os.fsync(out.fileno())


def _sync_directory(path: str) -> None:
    """Flush a directory to the disk, and its two parents, which may be new, too."""
    for folder in (Path(path), *list(Path(path).parents)[:2]):
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except PermissionError:
            return  # this system cannot open directories
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_files(paths: Iterable[str]) -> None:
    """Flush local files and their directory entries to the disk. Missing files are skipped."""
    directories = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError), Path(path).open("rb") as file:
            os.fsync(file.fileno())
            directories.add(path.rpartition("/")[0])
    for directory in sorted(directories):
        _sync_directory(directory)
