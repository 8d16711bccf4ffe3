"""What must work without Spark with every Python that is supported: write, change, search, read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import spark_lance
from spark_lance.cli.main import main
from tests.compatibility.tables import KINDS, make, rows, sorted_rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_made_changed_searched_and_read(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    result = make(path, kind)
    begun = [*rows(0, 300).to_pylist(), *rows(300, 100).to_pylist()]
    expected = {row["id"]: row for row in begun if row["id"] % 10 != 4}
    for number in (1, 2, 302):
        expected[number]["kind"] += 100
    expected |= {row["id"]: row for row in (*rows(390, 20).to_pylist(), *rows(700, 10).to_pylist())}
    assert result == [{**expected[number], "twice": 2 * number} for number in sorted(expected)]

    ds = spark_lance.dataset(path)
    assert spark_lance.dataset(path, version=1).count_rows() == 300
    assert set(ids(ds, filter="kind > 100")) == {1, 2, 302}
    assert set(ids(ds, filter="place.x > 90 and id < 500")) == {n for n in expected if 360 < n < 500}
    point = np.asarray(result[7]["vec"], np.float32)
    nearest = {"column": "vec", "q": point, "k": 1, "nprobes": 2, "refine_factor": 30}
    assert ids(ds, nearest=nearest) == [result[7]["id"]]
    quinces = {row["id"] for row in result if "quince" in row["words"].split()}
    assert set(ids(ds, full_text_query="quince")) == quinces
    ds.compact_files()
    assert len(spark_lance.dataset(path).get_fragments()) < len(ds.get_fragments())
    assert sorted_rows(spark_lance.dataset(path)) == result


def ids(ds: spark_lance.LanceDataset, **asked: object) -> list[int]:
    values: list[int] = ds.to_table(["id"], **asked)["id"].to_pylist()  # type: ignore[arg-type]
    return values


def test_the_command_line_checks_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "t")
    count = len(make(path, "2.2"))
    assert main(["verify", path]) == 0
    capsys.readouterr()
    assert main(["count", path]) == 0
    assert capsys.readouterr().out.strip() == str(count)
