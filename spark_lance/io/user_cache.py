"""A cache folder that the processes of one user share and nobody else can write to.

Its content is loaded as code or unmarshalled, so a folder that others can write to is not used.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path


def user_cache(*parts: str) -> Path:
    """Return a subfolder of the user's cache folder that only this user can write to.

    If the user has no such cache folder, the result is a temporary folder of this process.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder = home.joinpath("spark-lance", *parts)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # no home directory, or a read-only one
        return process_folder()
    own = not hasattr(os, "getuid") or status.st_uid == os.getuid()
    private = own and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if private and os.access(folder, os.W_OK) else process_folder()


def process_folder() -> Path:
    """Return a temporary folder that only this process uses; it is deleted when the process ends."""
    # A forked process needs its own folder, because its parent may end first.
    return _process_folder(os.getpid())


@cache
def _process_folder(process: int) -> Path:  # noqa: ARG001 (the key of the cache)
    return temporary_folder("spark-lance-")


def temporary_folder(prefix: str, parent: str | None = None) -> Path:
    """Create a folder that only this user can enter, and that is deleted when this process ends.

    Args:
        prefix: the start of its name; the rest cannot be guessed.
        parent: the folder that it is created in; the system's folder for temporary files by default.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    folder.chmod(0o700)
    status = folder.lstat()
    atexit.register(delete_temporary_folder, folder, (status.st_dev, status.st_ino), os.getpid())
    return folder


def delete_temporary_folder(folder: Path, identity: tuple[int, int], process: int) -> None:
    """Delete a folder with its content; links in it are deleted, and their targets are not.

    Args:
        folder: the path of the folder.
        identity: the folder's device and inode number. A folder or link that has replaced it is not deleted.
        process: the id of the process that created the folder. Forked processes do not delete it.
    """
    with contextlib.suppress(OSError):
        status = folder.lstat()
        if os.getpid() == process and (status.st_dev, status.st_ino) == identity:
            shutil.rmtree(folder, ignore_errors=True)
