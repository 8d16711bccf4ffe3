"""Folders for Unix sockets: who can connect to a socket of Spark's can run Python as its user.

Spark makes its sockets in a folder for temporary files, so that the umask decides who can connect. These are
in a folder that no other user can enter, whatever the umask.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

# By it Spark names the folder of the socket of its daemon of workers.
_FOLDER = "PYTHON_WORKER_FACTORY_SOCK_DIR"
_PREFIX = "spark-lance-"
# A socket's path has 104 to 108 bytes at most; Spark's names of sockets take 42 of them, ours of folders 21.
_LONGEST_PARENT = 104 - 42 - 21


def private_folder() -> Path | None:
    """Make a folder of mode 0700 for sockets; None if each place for it has too long a path.

    `mkdtemp` makes a folder that was not there before, under a name that nobody can guess. It goes with the
    process.
    """
    for parent in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):
        if parent and len(os.fsencode(parent)) <= _LONGEST_PARENT and os.access(parent, os.W_OK | os.X_OK):
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            folder.chmod(0o700)
            atexit.register(_remove, folder, os.getpid())
            return folder
    return None


def protect_daemon() -> None:
    """Let Spark's daemon, which is about to start in this process, make its socket in a private folder."""
    folder = os.environ.get(_FOLDER)
    if folder is not None and not _is_private(folder) and (own := private_folder()) is not None:
        os.environ[_FOLDER] = str(own)


def _is_private(folder: str) -> bool:
    with contextlib.suppress(OSError):
        about = os.lstat(folder)
        mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
        return mine and not stat.S_IMODE(about.st_mode) & 0o077
    return False


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process ends before
        shutil.rmtree(folder, ignore_errors=True)
