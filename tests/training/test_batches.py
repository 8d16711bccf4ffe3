"""What a training process gets: every row once, in the order of an epoch, shared out, from any position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance import write_dataset
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.training.batches import Batches


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LanceDataset:
    path = str(tmp_path_factory.mktemp("training") / "t")
    rows = pa.table({"n": np.arange(1000), "x": np.arange(1000) * 0.5})
    return spark_lance.write_dataset(rows, path, max_rows_per_file=170).delete("n % 10 = 3")


def numbers(batches: Batches, epoch: int = 0, shard: int = 0, shards: int = 1) -> list[int]:
    return [n for table, _ in batches.epoch(epoch, shard, shards) for n in table["n"].to_pylist()]


ALL = [n for n in range(1000) if n % 10 != 3]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("shards", [1, 2, 7])
@pytest.mark.parametrize("filter", [None, "n < 500"])
def test_every_row_comes_once_in_one_of_the_shards(
    ds: LanceDataset, shuffle: bool, shards: int, filter: str | None
) -> None:
    batches = Batches(ds, 64, ["n"], filter, shuffle=shuffle, piece_rows=32, buffer_pieces=3)
    parts = [numbers(batches, 0, shard, shards) for shard in range(shards)]
    expected = [n for n in ALL if filter is None or n < 500]
    assert sorted(n for part in parts for n in part) == expected
    if shards == 1:
        assert (parts[0] == expected) is not shuffle
    assert max(map(len, parts)) - min(map(len, parts)) <= 3 * 32


def test_epochs_differ_and_seeds_repeat_them(ds: LanceDataset) -> None:
    batches = Batches(ds, 50, ["n"], shuffle=True, seed=5, piece_rows=40, buffer_pieces=4)
    assert numbers(batches, 0) == numbers(batches, 0) != numbers(batches, 1)
    other = Batches(ds, 50, ["n"], shuffle=True, seed=6, piece_rows=40, buffer_pieces=4)
    assert numbers(other, 0) != numbers(batches, 0)


def test_batches_are_full_but_the_last(ds: LanceDataset) -> None:
    batches = Batches(ds, 64, ["n"], shuffle=True, piece_rows=30, buffer_pieces=2)
    sizes = [table.num_rows for table, _ in batches.epoch()]
    assert sizes == [64] * (900 // 64) + [900 % 64]
    assert {t.num_rows for t, _ in Batches(ds, 64, drop_last=True).epoch()} == {64}


@pytest.mark.parametrize("stop", [0, 1, 5, 13])
def test_an_epoch_goes_on_from_any_position(ds: LanceDataset, stop: int) -> None:
    batches = Batches(ds, 64, ["n"], shuffle=True, seed=1, piece_rows=30, buffer_pieces=4)
    whole = list(batches.epoch(3, 1, 2))
    given = whole[: stop + 1]
    rest = [table for table, _ in batches.epoch(3, 1, 2, given[-1][1])]
    assert [t["n"].to_pylist() for t in rest] == [t["n"].to_pylist() for t, _ in whole[len(given) :]]


def test_mistakes(ds: LanceDataset) -> None:
    with pytest.raises(OptionError, match="batch_size"):
        Batches(ds, 0)
    with pytest.raises(OptionError, match="shard 2 of 2"):
        next(Batches(ds).epoch(0, 2, 2))


def test_blobs_come_as_bytes(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = [bytes([i]) * (i + 1) for i in range(40)]
    table = pa.table(
        [pa.array(range(40)), pa.array(data, pa.large_binary())], pa.schema([("n", pa.int64()), blob])
    )
    result = spark_lance.write_dataset(
        table, str(tmp_path / "t"), data_storage_version="2.1", max_rows_per_file=15
    )
    batches = Batches(result, 7, shuffle=True, piece_rows=5, buffer_pieces=2)
    for part, _ in batches.epoch():
        assert part["b"].to_pylist() == [data[n] for n in part["n"].to_pylist()]


def test_a_fragment_is_opened_once_for_the_pieces_of_a_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the filter, and though pieces are in random order; few fragments stay open."""
    rows = pa.table({"id": range(1200), "even": [i % 2 == 0 for i in range(1200)]})
    table = write_dataset(rows, tmp_path / "t", max_rows_per_file=100).delete("id % 100 = 7")
    opened: list[int] = []
    really = ScanTask._open

    def noted(task: ScanTask, fields: Any) -> Any:
        opened.append(task.message.id)
        return really(task, fields)

    monkeypatch.setattr(ScanTask, "_open", noted)
    for condition, count in ((None, 1188), ("even", 600)):
        opened.clear()
        batches = Batches(table, 50, filter=condition, shuffle=True, piece_rows=10, buffer_pieces=120)
        seen = [number for batch, _ in batches.epoch() for number in batch["id"].to_pylist()]
        assert len(seen) == len(set(seen)) == count
        assert sorted(opened) == list(range(12))
