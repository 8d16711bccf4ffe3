"""Look-ups whose files are still open from the ones before: the same rows, the same counts, no stale file."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import FormatError
from spark_lance.io.handle_cache import evict_all
from spark_lance.table.reading import scan_task

ROWS = 20_000


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    evict_all()
    yield
    evict_all()


def table_of(rng: np.random.Generator, rows: int, first: int = 0) -> pa.Table:
    keys = np.arange(first, first + rows)
    return pa.table(
        {
            "key": keys,
            "text": pa.array([f"t{key % 71}" for key in keys], mask=rng.random(rows) < 0.1),
            "number": pa.array(rng.integers(0, 500, rows), mask=rng.random(rows) < 0.1),
            "runs": np.repeat(rng.integers(0, 9, rows // 20 + 1), 20)[:rows],
            "list": pa.array([[int(key)] * (key % 3) if key % 7 else None for key in keys]),
            "struct": pa.array([{"a": int(key), "b": f"{key}"} for key in keys]),
        }
    )


@pytest.fixture
def place(tmp_path: Path) -> str:
    rng = np.random.default_rng(1)
    path = str(tmp_path / "t.lance")
    spark_lance.write_dataset(table_of(rng, ROWS), path, max_rows_per_file=ROWS // 3)
    spark_lance.dataset(path).create_scalar_index("key", "BTREE")
    return path


def asked(place: str, keys: list[int], **options: Any) -> pa.Table:
    return spark_lance.dataset(place).to_table(filter=f"key IN ({', '.join(map(str, keys))})", **options)


def looked_up(rng: np.random.Generator, place: str, whole: pa.Table, *, times: int) -> None:
    """Compare look-ups with the rows of a table, `key` of which ascends."""
    known = whole["key"].to_numpy()
    for _ in range(times):
        keys = rng.integers(-5, ROWS + 50, int(rng.integers(1, 60)))
        at = np.flatnonzero(np.isin(known, keys))
        assert asked(place, [*keys.tolist(), *keys[:3].tolist()]).equals(whole.take(at))


def test_random_look_ups_between_changes(place: str) -> None:
    rng = np.random.default_rng(5)
    for turn in range(4):
        whole = spark_lance.dataset(place).to_table()
        looked_up(rng, place, whole, times=6)
        if turn == 0:
            spark_lance.dataset(place).delete("key % 5 = 2")
        elif turn == 1:
            spark_lance.write_dataset(table_of(rng, 40, ROWS), place, mode="append")
        else:
            spark_lance.dataset(place).add_columns({f"more{turn}": "key + 1"})
    assert len(scan_task._OPEN_FRAGMENTS._files) > 0


def test_columns_and_system_columns_of_look_ups(place: str) -> None:
    for _ in range(3):
        rows = asked(place, [3, 9000, 19_999], with_row_address=True, with_row_id=True)
        assert rows["_rowaddr"].to_pylist() == [3, (1 << 32) + 2334, (3 << 32) + 1]
        result = spark_lance.dataset(place).to_table(["text", "_rowoffset"], filter="key IN (3, 9000)")
        assert result["_rowoffset"].to_pylist() == [3, 9000]
        assert result["text"].to_pylist() == asked(place, [3, 9000])["text"].to_pylist()


def test_several_threads_have_files_of_their_own(place: str) -> None:
    whole = spark_lance.dataset(place).to_table()
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda seed: looked_up(np.random.default_rng(seed), place, whole, times=8),
                range(6),
            )
        )


def test_files_that_are_gone_are_missed(place: str) -> None:
    asked(place, [4])
    asked(place, [4])
    for file in (Path(place) / "data").iterdir():
        file.unlink()
    with pytest.raises(FormatError, match="does not exist"):
        asked(place, [4])


def test_files_that_others_have_changed_are_opened_anew(place: str) -> None:
    asked(place, [4])
    asked(place, [4])
    for file in (Path(place) / "data").iterdir():
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(bytes(len(data) - 8) + data[-8:])
    with pytest.raises(FormatError):
        asked(place, [4])


def test_what_the_process_deletes_is_not_kept(place: str) -> None:
    asked(place, [4])
    assert len(scan_task._OPEN_FRAGMENTS._files) == 1
    spark_lance.dataset(place).delete("key < 100")
    spark_lance.dataset(place).optimize.compact_files()
    spark_lance.dataset(place).cleanup_old_versions(older_than=None, retain_versions=1)
    assert len(scan_task._OPEN_FRAGMENTS._files) == 0


def test_pages_that_were_read_whole_are_not_kept(place: str) -> None:
    every = list(range(0, 3000))
    assert asked(place, every)["key"].to_pylist() == every
    assert len(scan_task._OPEN_FRAGMENTS._files) == 0
