"""Setting fragment ids aside: what the next writers get, here and in pylance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.errors import FormatError, IncompatibleConflictError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.append import append_message
from spark_lance.table.versions.versions import load_latest

Loose = Callable[..., list[table_pb2.DataFragment]]
ROWS = pa.table({"a": pa.array(range(4), pa.int64())})


def reserve(path: Path, count: int, read_version: int | None = None) -> Manifest:
    table = TableRef(*open_store(path))
    operation = transaction_pb2.Transaction.ReserveFragments(num_fragments=count)
    version = read_version or load_latest(table).version
    return commit_operation(table, operation, read_version=version)


def ids(path: Path) -> list[int]:
    dataset: Any = lance.dataset(str(path))
    dataset.validate()
    return [fragment.fragment_id for fragment in dataset.get_fragments()]


def test_the_next_fragments_come_after_the_reserved_ids(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    stale: Any = lance.dataset(str(path))
    assert reserve(path, 5).max_fragment_id == 5
    lance.write_dataset(ROWS, stale, mode="append")
    spark_lance.write_dataset(ROWS, path, "append")
    assert ids(path) == [0, 6, 7]
    assert lance.dataset(str(path)).count_rows() == 12


def test_reserved_ids_are_kept_by_the_fragments_that_bring_them(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    manifest = reserve(path, 2)
    fragments = loose(path, ROWS, mode="append")
    fragments[0].id = 1
    lance.write_dataset(ROWS, path, mode="append")
    table = TableRef(*open_store(path))
    commit_operation(table, append_message(fragments), read_version=manifest.version)
    assert ids(path) == [0, 1, 3]


def test_pylance_reserves_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dataset: Any = lance.write_dataset(ROWS, path, max_rows_per_file=2)
    dataset.optimize.compact_files(num_threads=1)
    table = TableRef(*open_store(path))
    versions = [spark_lance.dataset(path, version).manifest for version in (1, 2)]
    transaction = read_transaction(table, versions[1])
    assert transaction.name == "reserve_fragments"
    count = transaction.message.reserve_fragments.num_fragments
    other = tmp_path / "u"
    lance.write_dataset(ROWS, other, max_rows_per_file=2)
    ours = reserve(other, count)
    assert ours.max_fragment_id == versions[1].max_fragment_id == 1 + count
    lance.dataset(str(other)).optimize.compact_files()
    assert lance.dataset(str(other)).to_table() == ROWS


def test_a_table_without_fragments(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS.slice(0, 0), path)
    assert reserve(path, 3).max_fragment_id == 3
    lance.write_dataset(ROWS, path, mode="append")
    assert ids(path) == [4]


def test_ids_run_out(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    reserve(path, 1)
    with pytest.raises(FormatError, match="used up"):
        reserve(path, 2**32 - 1)
    assert spark_lance.dataset(path).version == 2


def test_conflicts(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    reserve(path, 1)
    spark_lance.dataset(path).delete(pc.field("a") == 1)
    lance.write_dataset(ROWS, path, mode="append")
    assert reserve(path, 4, read_version=1).max_fragment_id == 6
    lance.write_dataset(ROWS, path, mode="overwrite")
    with pytest.raises(IncompatibleConflictError, match="overwrite"):
        reserve(path, 1, read_version=1)
