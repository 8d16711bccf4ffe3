"""What must work with every release of pylance that is said to: it reads, searches and changes our tables.

`spark_lance.cli.inspect_commands` says which tables a release can use, for `doctor` and the docs. A release
must refuse the tables that it cannot use, not misread them. The release is the one that is installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.cli.inspect_commands import ENGINES
from spark_lance.cli.main import main
from tests.compatibility.tables import KINDS, make, rows, sorted_rows

RELEASE = tuple(int(part) for part in lance.__version__.split(".")[:2])


def engine() -> str:
    """Return the row of engines that tells of the release that is installed."""
    for each in ENGINES:
        words = each.name.split()
        if words[0] == "pylance":
            first, last = (tuple(int(part) for part in words[place].split(".")) for place in (1, -1))
            if first <= RELEASE and RELEASE[: len(last)] <= last:
                return each.name
    pytest.fail(f"spark_lance.cli.inspect_commands does not tell of pylance {lance.__version__}")


@pytest.fixture
def path(kind: str, tmp_path: Path) -> str:
    return str(tmp_path / kind)


def verdict(path: str, capsys: pytest.CaptureFixture[str]) -> tuple[bool, bool]:
    """Return whether the release reads and changes a table, as `doctor` says."""
    capsys.readouterr()
    assert main(["doctor", path, "--json"]) == 0
    said = {each["engine"]: each for each in json.loads(capsys.readouterr().out)["engines"]}[engine()]
    return said["read"] == "yes", said["write"] == "yes"


def ids(dataset: Any, **asked: Any) -> list[int]:
    return sorted(dataset.to_table(columns=["id"], **asked).column("id").to_pylist())


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    result: str = request.param
    return result


def test_it_reads_and_searches_or_refuses(kind: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = make(path, kind)
    if not verdict(path, capsys)[0]:
        with pytest.raises((ValueError, OSError, RuntimeError, NotImplementedError)):
            lance.dataset(path).to_table()
        return
    theirs = lance.dataset(path)
    assert sorted_rows(theirs) == result
    assert theirs.count_rows() == len(result)
    assert ids(theirs, filter="id in (5, 14, 395, 705)") == [5, 395, 705]
    assert ids(theirs, filter="kind > 100") == [1, 2, 302]
    point = np.asarray(result[7]["vec"], np.float32)
    nearest = {"column": "vec", "q": point, "k": 1, "nprobes": 2, "refine_factor": 30}
    assert ids(theirs, nearest=nearest) == [result[7]["id"]]
    quinces = [row["id"] for row in result if "quince" in row["words"].split()]
    assert ids(theirs, full_text_query="quince") == quinces
    assert [version["version"] for version in theirs.versions()] == list(range(1, theirs.version + 1))
    assert lance.dataset(path, version=1).count_rows() == 300


def test_it_changes_them_in_turns_with_us(kind: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    make(path, kind)
    if not verdict(path, capsys)[1]:
        pytest.skip(f"pylance {lance.__version__} does not change tables of {kind}, as we say")
    fresh = rows(800, 20).append_column("twice", pa.array(range(1600, 1640, 2), pa.int64()))
    version: Any = kind.partition("-")[0]
    lance.write_dataset(fresh, path, mode="append", data_storage_version=version)
    spark_lance.dataset(path).delete("id = 803")
    lance.dataset(path).delete("id in (1, 804)")
    spark_lance.dataset(path).update({"kind": "7"}, where="id = 805")
    lance.dataset(path).update({"kind": "9"}, where="id = 806")
    merge = lance.dataset(path).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(fresh.slice(18).set_column(0, "id", pa.array([819, 820], pa.int64())))
    lance.dataset(path).optimize.compact_files(target_rows_per_fragment=1000)
    ours, theirs = sorted_rows(spark_lance.dataset(path)), sorted_rows(lance.dataset(path))
    assert ours == theirs
    kinds = {row["id"]: row["kind"] for row in ours}
    assert not {1, 803, 804} & kinds.keys()
    assert (kinds[805], kinds[806]) == (7, 9)
    assert 820 in kinds
    assert spark_lance.dataset(path).to_table(["id"], filter="id = 820").num_rows == 1


@pytest.mark.parametrize("stable", [False, True])
def test_we_read_and_change_what_it_writes(stable: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    options: Any = {"enable_stable_row_ids": True} if stable and RELEASE >= (1, 0) else {}
    lance.write_dataset(rows(0, 200), path, **options)
    lance.dataset(path).create_scalar_index("id", "BTREE")
    lance.dataset(path).delete("id % 10 = 4")
    assert sorted_rows(spark_lance.dataset(path)) == sorted_rows(lance.dataset(path))
    spark_lance.write_dataset(rows(200, 50), path, mode="append")
    spark_lance.dataset(path).delete("id = 201")
    assert ids(lance.dataset(path), filter="id between 195 and 205") == [
        n for n in range(195, 206) if n not in (201,)
    ]
    assert sorted_rows(spark_lance.dataset(path)) == sorted_rows(lance.dataset(path))
