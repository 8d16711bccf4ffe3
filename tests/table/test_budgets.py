"""The budget of each operation on an object store: requests, and round trips in sequence."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import FormatError
from tests import far_store
from tests.far_store import Cost, counting

_ROWS, _FILES = 40_000, 4


@pytest.fixture(scope="module", autouse=True)
def far() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        far_store.install(patch)
        yield


def rows(count: int, start: int = 0) -> pa.Table:
    rng = np.random.default_rng(start)
    numbers = {f"n{i}": rng.integers(0, 2000, count) for i in range(6)}
    texts = {f"s{i}": [f"N{number}" for number in rng.integers(0, 4000, count)] for i in range(2)}
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(rng.standard_normal(8 * count).astype(np.float32)), 8
    )
    return pa.table(
        {"id": np.arange(start, start + count), "lot": rng.integers(0, 1000, count), "v": vectors}
        | numbers
        | texts
    )


def new_table(files: int = _FILES) -> str:
    uri = f"memory://{uuid.uuid4().hex}"
    write_dataset(rows(_ROWS), uri, max_rows_per_file=_ROWS // files)
    return uri


@pytest.fixture(scope="module")
def uri() -> str:
    """A table without indices that is only read."""
    return new_table()


@pytest.fixture(scope="module")
def indexed() -> str:
    """A table with a BTREE and an IVF_FLAT index that is only read."""
    uri = new_table()
    table = dataset(uri)
    table.create_scalar_index("id", "BTREE")
    table.create_index("v", "IVF_FLAT", num_partitions=4)
    return uri


def cost_of(action: Callable[[], Any]) -> tuple[Any, Cost]:
    with counting() as cost:
        return action(), cost


def within(cost: Cost, requests: int, trips: int) -> None:
    """Check the cost of an operation."""
    assert cost.requests <= requests, cost.log
    assert cost.trips <= trips, cost.log


def nearest(table: LanceDataset) -> int:
    query = {"column": "v", "q": np.zeros(8, np.float32), "k": 5, "nprobes": 2}
    return int(table.to_table(nearest=query).num_rows)


# The read, the number of its rows, and its requests and round trips in a process that has read before.
READS: dict[str, tuple[Callable[[LanceDataset], int], int, int, int]] = {
    "open": (lambda table: int(table.version), 1, 1, 1),
    "count": (lambda table: table.count_rows(), _ROWS, 1, 1),
    "limit": (lambda table: table.to_table(limit=10).num_rows, 10, 2, 2),
    "look-up": (lambda table: table.to_table(filter="id = 777").num_rows, 1, 6, 4),
    "filter": (lambda table: table.to_table(filter="n0 = n1").num_rows, 17, 9, 5),
    "column": (lambda table: table.to_table(columns=["n3"]).num_rows, _ROWS, 5, 3),
    "scan": (lambda table: table.to_table().num_rows, _ROWS, 5, 4),
    "take": (lambda table: table.take([5, 15_000, 25_000, 39_999]).num_rows, 4, 5, 5),
}


@pytest.mark.parametrize("name", READS)
def test_reads(name: str, uri: str) -> None:
    read, expected, requests, trips = READS[name]
    dataset(uri).take([0, 10_000, 20_000, 30_000])
    result, cost = cost_of(lambda: read(dataset(uri)))
    assert result == expected
    within(cost, requests, trips)


def test_first_read_of_a_process_opens_each_file_once(uri: str) -> None:
    far_store.forget()
    result, cost = cost_of(lambda: dataset(uri).to_table().num_rows)
    assert result == _ROWS
    within(cost, 2 + 2 * _FILES, 2 + 2 * _FILES)


def test_files_read_ahead_keep_their_order(uri: str) -> None:
    table = dataset(uri)
    assert table.to_table(columns=["id"])["id"].to_pylist() == list(range(_ROWS))
    assert table.to_table(columns=["id"], filter="id % 3 = 0")["id"].to_pylist() == list(range(0, _ROWS, 3))


def test_a_limit_reads_no_later_file(uri: str) -> None:
    table = dataset(uri)
    table.take([0, 10_000, 20_000, 30_000])
    result, cost = cost_of(lambda: table.to_table(filter="id >= 0", limit=10).num_rows)
    assert result == 10
    assert len({path for _, path, *_ in cost.log}) == 1, cost.log


def test_an_error_of_a_later_file_comes_after_the_rows_of_earlier_ones() -> None:
    table = dataset(new_table())
    names = [fragment.data_files()[0].path for fragment in table.get_fragments()]
    table.store.delete(f"{table.root}/data/{names[2]}", table.root)
    batches = table.to_batches(columns=["id"])
    assert pa.Table.from_batches([next(batches), next(batches)])["id"].to_pylist() == list(range(_ROWS // 2))
    with pytest.raises(FormatError, match=names[2]):
        next(batches)


def test_look_up_with_an_index(indexed: str) -> None:
    dataset(indexed).to_table(filter="id = 777")
    result, cost = cost_of(lambda: dataset(indexed).to_table(filter="id = 777").num_rows)
    assert result == 1
    within(cost, 3, 3)


def test_vector_search(indexed: str) -> None:
    nearest(dataset(indexed))
    result, cost = cost_of(lambda: nearest(dataset(indexed)))
    assert result == 5
    within(cost, 6, 6)


def test_append() -> None:
    uri = new_table()
    write_dataset(rows(1, _ROWS), uri, mode="append")
    result, cost = cost_of(lambda: write_dataset(rows(1, _ROWS), uri, mode="append").version)
    assert result == 3
    within(cost, 5, 5)


def test_commit_after_another_writer() -> None:
    uri = new_table()
    ours = dataset(uri)
    write_dataset(rows(1, _ROWS), uri, mode="append")
    _, cost = cost_of(lambda: ours.delete("id = 5"))
    assert dataset(uri).count_rows() == _ROWS
    within(cost, 12, 7)


def test_merge() -> None:
    uri = new_table()
    source = rows(100, _ROWS - 50)
    merge = dataset(uri).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    result, cost = cost_of(lambda: merge.execute(source))
    assert dataset(uri).count_rows() == _ROWS + 50, result
    within(cost, 13, 8)


def test_compaction_and_vacuum() -> None:
    uri = new_table(20)
    result, cost = cost_of(lambda: dataset(uri).compact_files(target_rows_per_fragment=_ROWS))
    assert result.fragments_removed == 20
    assert cost.count("GET", "/data/") <= 20
    within(cost, 25, 9)
    stats, cost = cost_of(lambda: dataset(uri).cleanup_old_versions(older_than=timedelta(0)))
    assert stats.data_files_removed == 20
    within(cost, 25, 11)
