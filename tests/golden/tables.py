"""The golden tables, for tests: unpacked into a folder of their own, with what their makers said of them."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

__all__ = ["NAMES", "Golden", "unpack"]

_HERE = Path(__file__).parent
NAMES = sorted(found.parent.name for found in _HERE.glob("*/table.tar.gz"))


@dataclass(frozen=True)
class Golden:
    """A table that some release of pylance made.

    Attributes:
        name: release and kind.
        path: where it was unpacked; tests may change it.
        said: what the release answered, see `generate.py`.
        rows: the rows as the release read them.
    """

    name: str
    path: str
    said: dict[str, Any]
    rows: pa.Table

    @property
    def kind(self) -> str:
        """The version of the data files, with "-stable" for stable row ids."""
        return self.name.partition("-")[2]

    @property
    def is_legacy(self) -> bool:
        """Whether the data files are legacy files, so that nothing is written to the table."""
        return self.kind == "legacy"


def unpack(name: str, folder: Path) -> Golden:
    """Unpack a golden table into a folder."""
    home = _HERE / name
    with tarfile.open(home / "table.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    said = json.loads((home / "expected.json").read_text())
    with pa.OSFile(str(home / "expected.arrow")) as file:
        rows = pa.ipc.open_file(file).read_all()
    return Golden(name, str(folder / "table"), said, rows)
