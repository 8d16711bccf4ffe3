"""Programs of Python that run without the rights of root, for which every file is open."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

_RIGHTS = "-dac_override,-dac_read_search"


def set_modes(root: Path, folders: int, files: int) -> None:
    """Set the permissions of everything below a folder, and of the folder."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            Path(folder, name).chmod(files)
        Path(folder).chmod(folders)


def answer_of(program: str, *arguments: object) -> Any:
    """Run a program as a user whom permissions bind; return the JSON of the last line that it prints."""
    command: Sequence[str] = [sys.executable, "-c", program, *map(str, arguments)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root may do everything, and there is no setpriv to take that away")
        command = ["setpriv", f"--bounding-set={_RIGHTS}", f"--inh-caps={_RIGHTS}", *command]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 127 or "setpriv:" in done.stderr:
        pytest.skip(f"rights cannot be taken away here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
