"""Temporary folders are deleted when their process ends, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spark_lance.io.user_cache import delete_temporary_folder

PROGRAM = """
import os, sys
from pathlib import Path
from spark_lance.io.user_cache import process_folder

folder = process_folder()
assert process_folder() == folder
(folder / "inner").mkdir()
(folder / "inner" / "file").write_text("x")
(folder / "link").symlink_to(sys.argv[1])
print(folder)
if os.fork() == 0:
    own = process_folder()
    assert own != folder
    print(own, flush=True)
    sys.exit()
os.wait()
assert folder.exists()
"""


def test_the_folder_of_a_process_is_deleted_when_it_ends(tmp_path: Path) -> None:
    remaining = tmp_path / "kept"
    remaining.mkdir()
    (remaining / "file").write_text("x")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(remaining)]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    folders = {Path(line) for line in done.stdout.split()}
    assert len(folders) == 2
    assert all(folder.parent == temporary and not folder.exists() for folder in folders)
    assert (remaining / "file").read_text() == "x"


def test_a_folder_that_was_replaced_is_not_deleted(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (other / "file").write_text("x")
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    delete_temporary_folder(folder, identity, os.getpid() + 1)
    assert folder.exists(), "a forked process deletes nothing"
    folder.rename(tmp_path / "moved")
    folder.symlink_to(other)
    delete_temporary_folder(folder, identity, os.getpid())
    assert folder.is_symlink()
    folder.unlink()
    other.rename(folder)
    delete_temporary_folder(folder, identity, os.getpid())
    assert (folder / "file").exists()
    delete_temporary_folder(tmp_path / "missing", identity, os.getpid())
    delete_temporary_folder(tmp_path / "moved", identity, os.getpid())
    assert not (tmp_path / "moved").exists()
