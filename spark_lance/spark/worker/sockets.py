"""Private folders for Unix sockets: anyone who can connect to Spark's socket can run Python as its user.

Spark creates its sockets in a folder for temporary files, so the umask decides who can connect. No other user
can enter the folders of this module, whatever the umask is.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from spark_lance.io.user_cache import temporary_folder

# Spark passes the folder of its socket to the daemon of workers in this variable.
_FOLDER = "PYTHON_WORKER_FACTORY_SOCK_DIR"
_PREFIX = "spark-lance-"
# A socket's path has 104 to 108 bytes at most; Spark's names of sockets take 42 of them, ours of folders 21.
_MAX_PARENT_BYTES = 104 - 42 - 21


def private_folder() -> Path | None:
    """Create a folder of mode 0700 for sockets; return None if the path of each possible parent is too long.

    It is deleted when the process ends.
    """
    for parent in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):
        if parent and len(os.fsencode(parent)) <= _MAX_PARENT_BYTES and os.access(parent, os.W_OK | os.X_OK):
            return temporary_folder(_PREFIX, parent)
    return None


def protect_daemon() -> None:
    """Let the daemon that is about to start in this process create its socket in a private folder."""
    folder = os.environ.get(_FOLDER)
    if folder is not None and not _is_private(folder) and (own := private_folder()) is not None:
        os.environ[_FOLDER] = str(own)


def _is_private(folder: str) -> bool:
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        return is_own and not stat.S_IMODE(status.st_mode) & 0o077
    return False
