"""The budget of each operation on an object store: requests, and round trips in sequence."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import FormatError
from spark_lance.table.versions.versions import recent_version
from tests import counting_store
from tests.counting_store import Cost, counting

_ROWS, _FILES = 40_000, 4


@pytest.fixture(scope="module", autouse=True)
def far() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        counting_store.install(patch)
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


def read_budgets() -> dict[str, tuple[int, int]]:
    """Return the requests and round trips of each operation in the table of docs/stores.md."""
    text = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
    section = text.partition("## Requests per operation")[2]
    rows = re.findall(r"^\| (.+) \| (\d+) \| (\d+) \|$", section, re.MULTILINE)
    return {names: (int(requests), int(trips)) for names, requests, trips in rows}


BUDGETS = read_budgets()


def check_budget(operation: str, prepare: Callable[[], Callable[[], Any]]) -> Any:
    """Check that an operation has exactly the documented cost, and return its result.

    A busy machine may start the requests of one volley late, so the least round trips of several runs count.

    Args:
        operation: the name in the documentation.
        prepare: prepares a run and returns it.
    """
    requests, trips = BUDGETS[operation]
    least: Cost | None = None
    for _ in range(8):
        result, cost = cost_of(prepare())
        assert cost.requests == requests, cost.log
        if least is None or cost.trips < least.trips:
            least = cost
        if cost.trips <= trips:
            break
    assert least is not None
    assert least.trips == trips, least.log
    return result


def nearest(table: LanceDataset) -> int:
    query = {"column": "v", "q": np.zeros(8, np.float32), "k": 5, "nprobes": 4}
    return int(table.to_table(nearest=query).num_rows)


# The read, and the number of its rows, in a process that has read before.
READS: dict[str, tuple[Callable[[LanceDataset], int], int]] = {
    "open, count": (lambda table: table.count_rows(), _ROWS),
    "`limit=10`": (lambda table: table.to_table(limit=10).num_rows, 10),
    "look-up without an index": (lambda table: table.to_table(filter="id = 777").num_rows, 1),
    "filter that keeps 17 rows of 4 files": (lambda table: table.to_table(filter="n0 = n1").num_rows, 17),
    "one column": (lambda table: table.to_table(columns=["n3"]).num_rows, _ROWS),
    "all columns": (lambda table: table.to_table().num_rows, _ROWS),
    "`take` of 4 rows in 4 files": (lambda table: table.take([5, 15_000, 25_000, 39_999]).num_rows, 4),
}
# Reads of a table with indexes.
INDEX_READS: dict[str, tuple[Callable[[LanceDataset], int], int]] = {
    "look-up of one key with a BTREE": (lambda table: table.to_table(filter="id = 777").num_rows, 1),
    "vector search": (nearest, 5),
}


@pytest.mark.parametrize("name", READS)
def test_reads(name: str, uri: str) -> None:
    read, expected = READS[name]
    dataset(uri).take([0, 10_000, 20_000, 30_000])
    assert check_budget(name, lambda: lambda: read(dataset(uri))) == expected


@pytest.mark.parametrize("name", INDEX_READS)
def test_reads_with_an_index(name: str, indexed: str) -> None:
    read, expected = INDEX_READS[name]
    read(dataset(indexed))
    assert check_budget(name, lambda: lambda: read(dataset(indexed))) == expected


def test_first_read_of_a_process_opens_each_file_once(uri: str) -> None:
    counting_store.forget()
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


def _append() -> Callable[[], Any]:
    uri = new_table()
    write_dataset(rows(1, _ROWS), uri, mode="append")
    return lambda: write_dataset(rows(1, _ROWS), uri, mode="append").count_rows()


def _delete() -> Callable[[], Any]:
    uri = new_table()
    ours = dataset(uri)
    write_dataset(rows(1, _ROWS), uri, mode="append")
    return lambda: ours.delete("id = 5").count_rows()


def _merge() -> Callable[[], Any]:
    source = rows(100, _ROWS - 50)
    merge = dataset(new_table()).merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    return lambda: merge.execute(source).num_inserted_rows


def _compact() -> Callable[[], Any]:
    uri = new_table(20)
    return lambda: dataset(uri).compact_files(target_rows_per_fragment=_ROWS).fragments_removed


def _vacuum() -> Callable[[], Any]:
    uri = new_table(20)
    dataset(uri).compact_files(target_rows_per_fragment=_ROWS)
    return lambda: dataset(uri).cleanup_old_versions(older_than=timedelta(0)).data_files_removed


# A function that prepares a run of a write, and the result of the run.
WRITES: dict[str, tuple[Callable[[], Callable[[], Any]], Any]] = {
    "append of one row": (_append, _ROWS + 2),
    "delete one row while another writer commits": (_delete, _ROWS),
    "merge 100 rows, half of them new": (_merge, 50),
    "compact 20 files of 125 KB into one": (_compact, 20),
    "vacuum 1 of 2 versions with 20 data files": (_vacuum, 20),
}


@pytest.mark.parametrize("name", WRITES)
def test_writes(name: str) -> None:
    prepare, expected = WRITES[name]
    assert check_budget(name, prepare) == expected


def test_every_documented_budget_is_checked() -> None:
    assert set(BUDGETS) == READS.keys() | INDEX_READS.keys() | WRITES.keys()


def test_compaction_reads_each_file_once() -> None:
    _, cost = cost_of(_compact())
    assert cost.count("GET", "/data/") <= 20


def test_an_append_after_other_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that the process knows is too old: the table has other columns, or is another one."""

    def changed_elsewhere(change: Callable[[str], Any]) -> str:
        uri = new_table()
        recent = recent_version(dataset(uri).snapshot.table)
        assert recent is not None
        change(uri)
        with monkeypatch.context() as patch:
            patch.setattr("spark_lance.datasets.dataset.recent_version", lambda _: recent)
            write_dataset(rows(1, _ROWS), uri, mode="append")
        return uri

    def replace_table(uri: str) -> None:
        table = dataset(uri)
        for item in table.store.list_objects(table.root, recursive=True):
            table.store.delete(item.path, table.root)
        write_dataset(rows(7), uri)

    uri = changed_elsewhere(lambda uri: dataset(uri).add_columns({"more": "id + 1"}))
    assert dataset(uri).to_table(filter="more is null").num_rows == 1
    uri = changed_elsewhere(lambda uri: write_dataset(rows(3, _ROWS + 1), uri, mode="append"))
    assert dataset(uri).count_rows() == _ROWS + 4
    assert dataset(uri).version == 3
    uri = changed_elsewhere(lambda uri: write_dataset(rows(5), uri, mode="overwrite"))
    assert dataset(uri).count_rows() == 6
    uri = changed_elsewhere(lambda uri: dataset(uri).update_config({"k": "v"}))
    assert dataset(uri).count_rows() == _ROWS + 1
    transaction = dataset(uri).read_transaction(3)
    assert transaction is not None
    assert transaction.read_version == 2
    uri = changed_elsewhere(replace_table)
    assert dataset(uri).count_rows() == 8
    assert len(dataset(uri).store.list(f"{dataset(uri).root}/data")) == 2
