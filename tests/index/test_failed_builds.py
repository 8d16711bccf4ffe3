"""A build of an index that fails leaves no files; one whose commit has an unknown outcome leaves them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_lance import LanceDataset, dataset, write_dataset
from spark_lance.errors import CommitOutcomeUnknownError, IncompatibleConflictError
from spark_lance.index.base.files import IndexFileWriter
from spark_lance.table.commits import commit as commit_module
from spark_lance.table.versions.publish import publish
from tests.index.vectors import clustered, table_of

ROWS = table_of(clustered(600, 8)).append_column("text", pa.array([f"word{i % 7} lance" for i in range(600)]))


def values(kind: str, column: str = "id") -> Callable[[LanceDataset], Any]:
    return lambda table: table.create_scalar_index(column, kind, "i")


BUILDS: dict[str, Callable[[LanceDataset], Any]] = {
    "btree": values("BTREE"),
    "bitmap": values("BITMAP"),
    "zones": values("ZONEMAP"),
    "ngram": values("NGRAM", "text"),
    "inverted": values("INVERTED", "text"),
    "vectors": lambda table: table.create_index("v", "IVF_PQ", "i", num_partitions=2, num_sub_vectors=2),
    "graph": lambda table: table.create_index("v", "IVF_HNSW_SQ", "i", num_partitions=2),
    "more values": lambda table: table.optimize.optimize_indices(index_names=["values"]),
    "more vectors": lambda table: table.optimize.optimize_indices(index_names=["vectors"]),
}
ALL = pytest.mark.parametrize("build", BUILDS)


@pytest.fixture
def table(tmp_path: Path) -> LanceDataset:
    """A table with two indices that do not cover its last rows."""
    path = str(tmp_path / "t")
    first = write_dataset(ROWS.slice(0, 300), path, max_rows_per_file=150)
    second = first.create_scalar_index("id", "BTREE", "values")
    second.create_index("v", "IVF_PQ", "vectors", num_partitions=2, num_sub_vectors=2)
    return write_dataset(ROWS.slice(300), path, mode="append")


def index_files(table: LanceDataset) -> set[Path]:
    return {path for path in Path(table.uri, "_indices").rglob("*") if path.is_file()}


@ALL
def test_a_commit_that_failed_leaves_no_files(
    table: LanceDataset, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    before = index_files(table)
    written: set[Path] = set()

    def fail(*arguments: Any) -> None:
        written.update(index_files(table) - before)
        raise IncompatibleConflictError("another writer was faster")

    monkeypatch.setattr(commit_module, "publish", fail)
    with pytest.raises(IncompatibleConflictError):
        BUILDS[build](table)
    assert written
    assert index_files(table) == before


@ALL
def test_a_build_that_failed_leaves_no_files(
    table: LanceDataset, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    before = index_files(table)
    written: set[Path] = set()
    finish = IndexFileWriter.finish

    def fail(writer: IndexFileWriter, *arguments: Any) -> int:
        # The file is there, but the segment lacks what follows.
        finish(writer, *arguments)
        written.update(index_files(table) - before)
        raise ZeroDivisionError

    monkeypatch.setattr(IndexFileWriter, "finish", fail)
    with pytest.raises(ZeroDivisionError):
        BUILDS[build](table)
    assert written
    assert index_files(table) == before
    assert dataset(table.uri).version == table.version


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
@ALL
def test_an_unknown_outcome_leaves_all_files(
    table: LanceDataset, monkeypatch: pytest.MonkeyPatch, build: str, landed: bool
) -> None:
    before = index_files(table)
    written: set[Path] = set()

    def fail(*arguments: Any) -> None:
        if landed:
            publish(*arguments)
        written.update(index_files(table) - before)
        raise ConnectionError("reset")

    def blind(*arguments: Any) -> Any:
        raise ConnectionError("no route to store")

    with monkeypatch.context() as patch:
        patch.setattr(commit_module, "publish", fail)
        patch.setattr(commit_module, "read_manifest", blind)
        with pytest.raises(CommitOutcomeUnknownError):
            BUILDS[build](table)
    assert written
    assert index_files(table) == before | written
    newest = dataset(table.uri)
    assert newest.version == table.version + landed
    assert newest.count_rows("id < 500") == 500
