"""Small files of every version and encoding, damaged in every way: typed errors or rows, never anything else.

What each damage is, and the limits of time and memory, are in tests/file/damage.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import lance
import pyarrow as pa
import pytest

import spark_lance
from tests.conftest import ROOT
from tests.file.v2_0.test_corruption import SMALL as SMALL_20
from tests.file.v2_1.pylance_file import one_column
from tests.file.v2_1.test_corruption import SMALL as SMALL_21

Version: TypeAlias = Literal["2.0", "2.1", "2.2", "legacy"]
BLOB = {"lance-encoding:blob": "true"}
MORE = {
    "blob": pa.table(
        [pa.array([b"abc", None, b"", b"x" * 30], pa.large_binary())],
        schema=pa.schema([pa.field("a", pa.large_binary(), metadata=BLOB)]),
    ),
    "fixed packed": one_column(pa.array([{"a": 1, "b": 1.5}, {"a": 2, "b": 2.5}] * 3), packed="true"),
    "split bytes": one_column(pa.array([i / 7 for i in range(40)]), compression="zstd", bss="on"),
    "one value": one_column(pa.array([7] * 9)),
    "struct": one_column(pa.array([{"x": 1, "y": None}, None, {"x": None, "y": "s"}] * 3)),
    "fsl of struct": one_column(
        pa.array([[{"x": 1}, {"x": None}], None], pa.list_(pa.struct([("x", pa.int16())]), 2))
    ),
    "several columns": pa.table({"a": [1, 2, 3], "b": ["x", None, "z"], "c": [[1], [], None]}),
}
# What neither implementation writes into files of a version; the others must be written.
NOT_STORED: dict[Version, set[str]] = {
    "2.0": {"struct", "fsl of struct"},
    "2.1": {"packed", "map", "fsl of struct"},
    "2.2": set(),
    "legacy": {"fsl of struct"},
}


def files(folder: Path, version: Version, step: int = 1) -> Iterator[str]:
    """Write (every so many) small tables with both implementations; yield their names."""
    tables = {**(SMALL_21 if version in ("2.1", "2.2") else SMALL_20), **MORE}
    for name, table in list(tables.items())[::step]:
        for who, write in (("pylance", lance.write_dataset), ("ours", spark_lance.write_dataset)):
            root = folder / f"{name} {version} {who}"
            if name in NOT_STORED[version] or (who == "ours" and version == "legacy"):
                continue
            write(table, str(root), data_storage_version=version)
            for i, file in enumerate(sorted((root / "data").glob("*.lance"))):
                file.rename(folder / f"{name.replace(' ', '-')}-{version}-{who}-{i}.lance")
                yield name


def campaign(folder: Path, seconds: float, most: int, seed: int) -> list[dict[str, object]]:
    """Run the campaign over the files of a folder in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.file.damage", str(folder), str(seconds), str(most), str(seed)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    at = f"the damaged file is {folder / 'at'}"
    assert done.returncode == 0, f"the process ended with {done.returncode}; {at}\n{done.stderr[-3000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(reports: list[dict[str, object]]) -> None:
    wrong = {str(report["file"]): report["wrong"] for report in reports if report["wrong"]}
    total: Counter[str] = Counter()
    for report in reports:
        assert isinstance(report["outcomes"], dict)
        total.update(report["outcomes"])
    assert not wrong, json.dumps(wrong, indent=1)
    assert total["refused"] > 10 * len(reports), f"{len(reports)} files: {dict(total)}"


VERSIONS: tuple[Version, ...] = ("2.0", "2.1", "2.2", "legacy")


def test_a_sample(tmp_path: Path) -> None:
    written = [name for version in VERSIONS for name in files(tmp_path, version, 7)]
    assert len(written) > 10
    check(campaign(tmp_path, 60, 60, 1))


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_everything(tmp_path: Path, version: Version) -> None:
    list(files(tmp_path, version))
    seconds, seed = (os.environ.get(f"CAMPAIGN_{name}", "8") for name in ("SECONDS", "SEED"))
    check(campaign(tmp_path, float(seconds), 1 << 40, int(seed)))
