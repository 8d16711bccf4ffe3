"""The advice of an error works: each mistake, its advice, and a call that follows the advice."""

# mypy: disable-error-code="func-returns-value"

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.datasets.lance_dataset import LanceDataset
from spark_lance.datasets.operations import LanceOperation, Transaction
from spark_lance.table.versions.ages import parse_duration
from tests.datasets.test_mistakes import line_of

VECTORS = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(32, np.float32)), 4)
ROWS = pa.table({"id": range(8), "s": list("abcdefgh"), "v": VECTORS})
SEARCH = {"column": "v", "q": [0.0] * 4, "k": 2}


@pytest.fixture
def table(tmp_path: Path) -> LanceDataset:
    write_dataset(ROWS, tmp_path / "t")
    table = write_dataset(ROWS, tmp_path / "t", mode="append")
    table.tags.create("old", 1)
    return table


def _rows(**columns: Any) -> pa.Table:
    return pa.table(columns)


def _new(table: LanceDataset, data: Any, **options: Any) -> LanceDataset:
    return write_dataset(data, Path(table.uri).parent / "new", **options)


def _append(table: LanceDataset, data: Any, **options: Any) -> LanceDataset:
    return write_dataset(data, table.uri, mode="append", **options)


def _keyed(table: LanceDataset, *names: str) -> LanceDataset:
    fields = [
        pa.field(name, pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
        if name in names
        else pa.field(name, pa.int64())
        for name in ("a", "b")
    ]
    rows = pa.table([pa.array([1, 2]), pa.array([3, 4])], schema=pa.schema(fields))
    return _new(table, rows)


def _row_log(table: LanceDataset, **sharding: Any) -> Any:
    keyed = _keyed(table, "a")
    keyed.initialize_mem_wal(**sharding)
    return dataset(keyed.uri).upsert_log()


Case = tuple[str, Callable[[LanceDataset], Any], Callable[[LanceDataset], Any]]
CASES: list[Case] = [
    (
        "choose another name, such as 'main-1'",
        lambda t: t.tags.create("main", 1),
        lambda t: t.tags.create("main-1", 1),
    ),
    (
        "use letters, digits, '.', '-' and '_'",
        lambda t: t.tags.create("last week", 1),
        lambda t: t.tags.create("last_week", 1),
    ),
    ("use bitmap or zonemap", lambda t: _json_index(t, "btree"), lambda t: _json_index(t, "bitmap")),
    (
        "give a version or a time, not both",
        lambda t: dataset(t.uri, version=1, asof="2999-01-01"),
        lambda t: (dataset(t.uri, version=1), dataset(t.uri, asof="2999-01-01")),
    ),
    (
        "give read_version or a transaction",
        lambda t: LanceDataset.commit(t.uri, _append_of(t), read_version=2),
        lambda t: LanceDataset.commit(t.uri, _append_of(t)),
    ),
    (
        "compare columns with literals",
        lambda t: t.settings.add_constraint("c", "length(s) < rand()"),
        lambda t: t.settings.add_constraint("c", "id >= 0"),
    ),
    (
        "use up to 128 letters, digits, spaces, '_', '.' and '-'",
        lambda t: t.settings.add_constraint("a/b", "id >= 0"),
        lambda t: t.settings.add_constraint("a_b. c-1", "id >= 0"),
    ),
    (
        "LanceDataset.scanner(fragments=[...])",
        lambda t: t.get_fragments()[0].scanner(nearest=SEARCH).to_table(),
        lambda t: t.scanner(fragments=[t.get_fragments()[0]], nearest=SEARCH).to_table(),
    ),
    (
        "use cast()",
        lambda t: t.to_table(filter="s = id"),
        lambda t: t.to_table(filter="s = cast(id AS STRING)"),
    ),
    (
        "leave the column out, or rename it",
        lambda t: _new(t, _rows(_rowid=[1])),
        lambda t: _new(t, _rows(row_id=[1])),
    ),
    (
        "use version 2.2",
        lambda t: _new(t, _maps(), data_storage_version="2.1"),
        lambda t: _new(t, _maps(), data_storage_version="2.2"),
    ),
    (
        "drop it, or give another name",
        lambda t: [dataset(t.uri).create_scalar_index(c, "BTREE", name="i") for c in ("id", "s")],
        lambda t: (dataset(t.uri).create_scalar_index("s", "BTREE", name="j"), t.drop_index("i")),
    ),
    (
        "use num_bits=8",
        lambda t: _codes(_new(t, _vectors(3)), 4),
        lambda t: _codes(dataset(_folder(t)), 8),
    ),
    (
        "use a local path",
        lambda t: dataset("nope://x/t"),
        lambda t: dataset(t.uri),
    ),
    (
        "keys must be a table, or dicts, with the columns a, b",
        lambda t: _fresh_pairs(t).lookup([1]),
        lambda t: dataset(_folder(t)).fresh().lookup([{"a": 1, "b": 3}]),
    ),
    (
        "set only one of bucket_column, identity_column and unsharded",
        lambda t: t.initialize_mem_wal(identity_column="id", unsharded=True),
        lambda t: t.initialize_mem_wal(unsharded=True),
    ),
    (
        "choose another column",
        lambda t: t.initialize_mem_wal(bucket_column="v", num_buckets=2),
        lambda t: t.initialize_mem_wal(bucket_column="id", num_buckets=2),
    ),
    (
        "use mem_wal_writer(shard_id)",
        lambda t: _row_log(t),
        lambda t: _one_shard(t),
    ),
    (
        "write with mem_wal_writer(shard_id)",
        lambda t: _row_log(t, bucket_column="b", num_buckets=2),
        lambda t: _one_shard(t),
    ),
    (
        "write one like 14days or 1h 30min",
        lambda t: parse_duration("soon"),
        lambda t: [parse_duration(text) for text in ("14days", "1h 30min")],
    ),
    (
        "use it, or delete it first",
        lambda t: [t.create_branch("b", 2) for _ in range(2)],
        lambda t: (dataset(t.uri, version=("b", None)), t.branches.delete("b"), t.create_branch("b", 2)),
    ),
    (
        "tag on_b: delete these first",
        lambda t: (t.create_branch("b", 2), t.tags.create("on_b", ("b", None)), t.branches.delete("b")),
        lambda t: (t.tags.delete("on_b"), t.branches.delete("b")),
    ),
    (
        "pass error_if_tagged_old_versions=False",
        lambda t: t.cleanup_old_versions(older_than=timedelta(0)),
        lambda t: (
            t.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False),
            t.tags.delete("old"),
            t.cleanup_old_versions(older_than=timedelta(0)),
        ),
    ),
    (
        "give a number, tag or (branch, number)",
        lambda t: _any(t).checkout_version((1, 2, 3)),
        lambda t: [t.checkout_version(name) for name in (1, "old", ("main", 1))],
    ),
    (
        "such as data.to_frame()",
        lambda t: _new(t, _series()),
        lambda t: _new(t, _series().to_frame()),
    ),
    (
        "needs the argument schema",
        lambda t: _new(t, iter(())),
        lambda t: _new(t, iter(()), schema=pa.schema({"id": pa.int64()})),
    ),
    (
        "give an Arrow table or stream, a DataFrame, a dict of columns, a list of dicts",
        lambda t: _new(t, 5),
        lambda t: [
            _new(t, data, mode="overwrite")
            for data in (_rows(a=[1]), _rows(a=[1]).to_reader(), {"a": [1]}, [{"a": 1}])
        ],
    ),
    (
        "write to an empty folder, or delete these files first",
        lambda t: ((_folder(t) / "x.csv").write_text("a"), _new(t, _rows(a=[1]))),
        lambda t: ((_folder(t) / "x.csv").unlink(), _new(t, _rows(a=[1]))),
    ),
    (
        "give target_bases or target_all_bases, not both",
        lambda t: _append(t, ROWS, target_bases=[t.uri], target_all_bases=True),
        lambda t: (_append(t, ROWS, target_bases=[t.uri]), _append(t, ROWS, target_all_bases=True)),
    ),
    (
        "use compaction_mode 'reencode'",
        lambda t: t.compact_files(compaction_mode="force_binary_copy"),
        lambda t: t.compact_files(compaction_mode="reencode"),
    ),
]  # fmt: skip


def _any(table: Any) -> Any:
    return table


def _append_of(table: LanceDataset) -> Transaction:
    return Transaction(table.version, LanceOperation.Append([]))


def _maps() -> pa.Table:
    return pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})


def _vectors(dimension: int) -> pa.Table:
    values = pa.array(np.arange(300 * dimension, dtype=np.float32))
    return pa.table({"v": pa.FixedSizeListArray.from_arrays(values, dimension)})


def _json_index(table: LanceDataset, kind: str) -> LanceDataset:
    rows = pa.table({"j": pa.array(['{"a": 1}'], pa.json_())})
    documents = _new(table, rows, mode="overwrite", enable_stable_row_ids=True)
    return documents.create_scalar_index("j", "JSON", path="a", target_index_type=kind)


def _codes(table: LanceDataset, bits: int) -> LanceDataset:
    return table.create_index("v", "IVF_PQ", num_partitions=1, num_sub_vectors=1, num_bits=bits)


def _fresh_pairs(table: LanceDataset) -> Any:
    keyed = _keyed(table, "a", "b")
    keyed.initialize_mem_wal(unsharded=True)
    return dataset(keyed.uri).fresh()


def _one_shard(table: LanceDataset) -> None:
    keyed = dataset(_folder(table))
    with keyed.mem_wal_writer("00000000-0000-0000-0000-000000000001") as writer:
        writer.put(pa.table([[1], [5]], schema=keyed.schema))
    assert keyed.fresh().lookup([1])["b"].to_pylist() == [5]


def _series() -> Any:
    import pandas as pd

    return pd.Series([1, 2], name="a")


def _folder(table: LanceDataset) -> Path:
    folder = Path(table.uri).parent / "new"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize("case", CASES, ids=[case[0].replace(" ", "-") for case in CASES])
def test_advice_can_be_followed(table: LanceDataset, case: Case) -> None:
    advice, mistake, remedy = case
    assert advice in line_of(lambda: mistake(table))
    remedy(dataset(table.uri))
