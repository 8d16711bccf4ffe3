"""A cache folder that the processes of one user share and nobody else can write to.

Its content is loaded as code or unmarshalled, so a folder that others can write to is not used.
"""

from __future__ import annotations

import os
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


@cache
def process_folder() -> Path:
    """Return a temporary folder that only this process uses."""
    return Path(tempfile.mkdtemp(prefix="spark-lance-"))
