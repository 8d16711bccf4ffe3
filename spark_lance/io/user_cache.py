"""A cache folder that processes of one user share, and that nobody else can write.

Its content is loaded as code or unmarshalled, so a folder that others can write is not used.
"""

from __future__ import annotations

import os
import stat
import tempfile
from functools import cache
from pathlib import Path


def user_cache(*parts: str) -> Path:
    """Return a folder below the user's cache folder that only this user can write, by the parts of its name.

    If the user has no such cache folder, it is a temporary folder that is deleted with the process.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        folder = home.joinpath("spark-lance", *parts)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
    except (OSError, RuntimeError):  # no home, or a read-only one
        return process_folder()
    own = not hasattr(os, "getuid") or about.st_uid == os.getuid()
    private = own and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if private and os.access(folder, os.W_OK) else process_folder()


@cache
def process_folder() -> Path:
    """Return a folder of this process alone."""
    return Path(tempfile.mkdtemp(prefix="spark-lance-"))
