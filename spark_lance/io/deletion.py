"""Deletion of local files below a root, without following links.

Anyone can create a table, and any folder in it can be a symbolic link to a folder elsewhere. So listing and
deleting start at the table's root and open each folder by its name in its parent folder; links are not
opened. The path of the root may contain links, because the caller chose it. A file that is a link is deleted;
the link's target is not.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from spark_lance.errors import StoreError
from spark_lance.io.failures import local_failure
from spark_lance.io.stored_object import StoredObject

logger = logging.getLogger(__name__)

# Windows cannot open folders, so paths are compared there.
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


class LinkedFolderError(StoreError):
    """A folder below the root is a link, or a link in its path leads out of the root."""


def check_inside(path: str, root: str) -> str:
    """Return a path relative to a root.

    Raises:
        StoreError: the path does not start with the root.
    """
    head = root.rstrip("/") + "/"
    if not path.startswith(head):
        raise StoreError(f"{path} is not below {root}, so it is not deleted")
    return path[len(head) :]


def _parts(path: str, root: str) -> list[str]:
    """Return the parts of a local path relative to a root; errors as for `check_inside`."""
    parts = check_inside(path, root).split("/")
    if {"", ".", ".."} & set(parts):
        raise StoreError(f"{path} is not below {root}, so it is not deleted")
    return parts


def delete_file(path: str, root: str) -> None:
    """Delete a file, or a link, below a root.

    Raises:
        FileNotFoundError: the file does not exist.
        StoreError: the path leads through a link, or the file cannot be deleted.
    """
    *folders, name = _parts(path, root)
    try:
        with _open_below(root, folders) as folder:
            if folder is None:
                Path(path).unlink()
            else:
                os.unlink(name, dir_fd=folder)
    except LinkedFolderError:
        raise
    except NotADirectoryError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except OSError as error:
        raise local_failure(error, f"deleting {path}") from None


def files_to_delete(directory: str, root: str, recursive: bool) -> list[StoredObject]:
    """Return the files and links in a folder below a root, and in its subfolders if `recursive`.

    A link is listed as a link, with its own size. Its time is the later of the link's time and its target's.
    The list is empty if the folder does not exist, or if it is a link, which is logged.

    Raises:
        StoreError: a folder cannot be listed.
    """
    folders = _parts(directory, root) if directory != root else []
    try:
        with _open_below(root, folders) as folder:
            return list(_walk(folder, directory, recursive))
    except LinkedFolderError as error:
        logger.warning("%s", error)
        return []
    except (FileNotFoundError, NotADirectoryError):
        return []
    except StoreError:
        raise
    except OSError as error:
        raise local_failure(error, f"listing {directory}") from None


def remove_empty_folders(directory: str, root: str) -> None:
    """Remove a folder below a root and its subfolders where they are empty. Links are kept."""
    with contextlib.suppress(OSError):
        with _open_below(root, _parts(directory, root)) as folder:
            _prune(folder, directory)
        *folders, name = _parts(directory, root)
        with _open_below(root, folders) as parent:
            if parent is None:
                Path(directory).rmdir()
            else:
                os.rmdir(name, dir_fd=parent)


@contextlib.contextmanager
def _open_below(root: str, folders: Sequence[str]) -> Iterator[int | None]:
    """Open a folder below a root and yield its descriptor; None on systems where only paths can be checked.

    Raises:
        LinkedFolderError: one of the folders is a link.
    """
    path = "/".join([root.rstrip("/"), *folders])
    if not _BY_DESCRIPTOR:
        if os.path.realpath(path) != os.path.join(os.path.realpath(root), *folders):  # noqa: PTH118
            raise _link_error(path)
        yield None
        return
    descriptor = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for number, name in enumerate(folders, 1):
            inner = _open_folder(name, descriptor, "/".join([root.rstrip("/"), *folders[:number]]))
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _open_folder(name: str, parent: int, path: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise _link_error(path) from None
        raise


def _link_error(path: str) -> LinkedFolderError:
    return LinkedFolderError(
        f"{path} is a link: files behind a link are not deleted; make it a folder of the table, or delete "
        "the files in the folder that it leads to by hand"
    )


def _walk(folder: int | None, path: str, recursive: bool) -> Iterator[StoredObject]:
    inside = []
    with os.scandir(path if folder is None else folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inside.append(entry.name)
                continue
            # It may be deleted while the folder is listed.
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                seconds = status.st_mtime
                if entry.is_symlink():
                    with contextlib.suppress(OSError):  # the target may not exist
                        seconds = max(seconds, entry.stat().st_mtime)
                modified = datetime.fromtimestamp(seconds, timezone.utc)
                yield StoredObject(f"{path}/{entry.name}", status.st_size, modified)
    for name in inside if recursive else ():
        try:
            if folder is None:
                yield from _walk(None, f"{path}/{name}", recursive)
                continue
            inner = _open_folder(name, folder, f"{path}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            continue  # deleted meanwhile, or replaced by a file
        except PermissionError as error:
            raise local_failure(error, f"listing {path}/{name}") from None
        try:
            yield from _walk(inner, f"{path}/{name}", recursive)
        finally:
            os.close(inner)


def _prune(folder: int | None, path: str) -> None:
    """Remove the empty folders in a folder."""
    with os.scandir(path if folder is None else folder) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for name in names:
        with contextlib.suppress(OSError):
            if folder is None:
                _prune(None, f"{path}/{name}")
                Path(path, name).rmdir()
                continue
            inner = _open_folder(name, folder, f"{path}/{name}")
            try:
                _prune(inner, f"{path}/{name}")
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
