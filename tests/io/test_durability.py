"""With durability="fsync" everything that a commit names is forced to the disk before it returns."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import dataset, write_dataset
from spark_lance.errors import OptionError

ROWS = pa.table({"a": [1, 2, 3]})


def test_files_and_folders_are_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inodes: set[int] = set()
    real = os.fsync

    def noted(descriptor: int) -> None:
        inodes.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "t"
    write_dataset(ROWS, path)
    assert not inodes
    durable = {"durability": "fsync"}
    write_dataset(ROWS, path, mode="append", storage_options=durable)
    dataset(path, storage_options=durable).delete("a = 1")
    table = dataset(path)
    names = [
        f"data/{table.manifest.fragments[1].files[0].path}",
        f"_transactions/{table.manifest.transaction_file}",
    ]
    names += ["data", "_versions", "_transactions", "_deletions", "."]
    needed = [path / name for name in names] + [Path(table.manifest.path), *(path / "_deletions").iterdir()]
    assert {str(place) for place in needed if place.stat().st_ino not in inodes} == set()


def test_other_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="durability is 'none' or 'fsync'"):
        write_dataset(ROWS, tmp_path / "t", storage_options={"durability": "yes"})
    write_dataset(ROWS, "memory://durable", storage_options={"durability": "fsync"})
