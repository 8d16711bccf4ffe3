"""Long operations tell how far they are, in steps that end with the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.cli.main import main
from spark_lance.io.progress import report, report_part, reporting

Heard = list[tuple[str, int, int, str]]


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    for start in range(0, 400, 100):
        vectors = np.random.default_rng(start).random(100 * 8, dtype=np.float32)
        rows = {"id": range(start, start + 100), "v": pa.FixedSizeListArray.from_arrays(vectors, 8)}
        spark_lance.write_dataset(pa.table(rows), path, mode="append")
    return path


@pytest.mark.parametrize(
    ("words", "step", "unit", "total"),
    [
        (["compact", "{}"], "rewriting", "rows", 400),
        (["compact", "{}", "--threads", "2", "--target-rows", "100"], "rewriting", "rows", 0),
        (
            ["vacuum", "{}", "--older-than", "0s", "--allow-short-retention"],
            "reading versions",
            "versions",
            4,
        ),
        (["vacuum", "{}", "--older-than", "0s", "--allow-short-retention"], "deleting", "files", 6),
        (["index", "build", "{}", "id", "BTREE"], "reading values", "rows", 400),
        (["index", "build", "{}", "v", "IVF_FLAT", "--partitions", "2"], "coding vectors", "rows", 400),
        (["verify", "{}"], "reading", "bytes", None),
        (["stats", "{}"], "reading files", "files", 4),
        (["export", "{}", "{}.parquet"], "exporting", "rows", 400),
    ],
)
def test_long_commands_tell_how_far_they_are(
    words: list[str], step: str, unit: str, total: int | None, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: Heard = []

    def listen(self: Any, *said: Any) -> None:
        heard.append(said)

    monkeypatch.setattr("spark_lance.cli.output.Progress.__call__", listen)
    assert main([word.format(table) for word in words]) == 0
    results = [(done, whole) for name, done, whole, each in heard if (name, each) == (step, unit)]
    if total == 0:
        assert results == []
        return
    assert results
    assert [done for done, _ in results] == sorted(done for done, _ in results)
    assert len({whole for _, whole in results}) == 1
    assert total is None or results[-1][1] == total
    assert results[-1][0] <= results[-1][1]
    if step != "deleting":
        assert results[-1][0] == results[-1][1]


def test_parts_count_as_parts() -> None:
    heard: Heard = []
    listener: Callable[..., None] = lambda *said: heard.append(said)  # noqa: E731
    with reporting(listener):
        report("a", 1, 2, "rows")
        with report_part(10, 20):
            report("b", 3, 4, "rows")
        report("c", 2, 2, "rows")
    with report_part(1, 2):
        report("d", 1, 1, "rows")
    assert heard == [("a", 1, 2, "rows"), ("b", 13, 20, "rows"), ("c", 2, 2, "rows")]
