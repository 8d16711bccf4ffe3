"""Versions outside the history: made by both sides in turns, read by both."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance import LanceDataset, LanceOperation, dataset, write_dataset
from spark_lance.datasets.building import write_fragments
from spark_lance.errors import (
    CommitOutcomeUnknownError,
    OptionError,
    RetryableConflictError,
    StoreError,
    TableNotFoundError,
    UnsupportedFormatError,
    VersionNotFoundError,
)
from spark_lance.io.store import Store
from tests.wrapped_store import replace_request

IDS = ["id", "_rowid", "_rowaddr", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def append(path: Path, *ids: int) -> LanceOperation.Append:
    fragments: Any = write_fragments(rows(*ids), str(path))
    return LanceOperation.Append(fragments)


def detached(path: Path, operation: Any, read_version: int, **options: Any) -> LanceDataset:
    return LanceDataset.commit(path, operation, read_version, detached=True, **options)


@pytest.mark.parametrize("seed", range(6))
def test_both_sides_build_on_each_others_detached_versions(tmp_path: Path, seed: int) -> None:
    """A tree of versions, each computed from one of the history or from another detached one."""
    draw = random.Random(seed)
    stable = draw.random() < 0.5
    path = tmp_path / "t"
    write_dataset(rows(0, 1, 2), path, enable_stable_row_ids=stable)
    history = [0, 1, 2]
    known: dict[int, list[int]] = {}
    for number in range(10, 22):
        if draw.random() < 0.3:
            write_dataset(rows(number), path, "append")
            history = [*history, number]
            continue
        base = draw.choice([1, *known])
        before = known.get(base, history)
        if draw.random() < 0.5:
            result = detached(path, append(path, number), base).version
        else:
            fragment = lance.LanceFragment.create(str(path), rows(number))
            operation = lance.LanceOperation.Append([fragment])
            result = lance.LanceDataset.commit(str(path), operation, read_version=base, detached=True).version
        assert result >> 63 == 1
        known[result] = [*before, number]
    for version, ids in known.items():
        ours = dataset(path, version)
        assert ours.to_table()["id"].to_pylist() == ids
        theirs = lance.dataset(str(path), version=version)
        theirs.validate()  # type: ignore[no-untyped-call]
        names = IDS if stable else IDS[:3]
        assert theirs.to_table(names).to_pydict() == ours.to_table(names).to_pydict()
        assert ours.latest_version == theirs.latest_version < 2**63
    newest = dataset(path)
    assert newest.to_table()["id"].to_pylist() == history
    assert lance.dataset(str(path)).to_table()["id"].to_pylist() == history
    assert [entry["version"] for entry in newest.versions()] == list(range(1, newest.version + 1))
    newest.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    for version, ids in known.items():
        assert dataset(path, version).to_table()["id"].to_pylist() == ids


def test_a_restore_brings_one_into_the_history(tmp_path: Path) -> None:
    write_dataset(rows(0), tmp_path)
    result = detached(tmp_path, append(tmp_path, 1), 1)
    write_dataset(rows(2), tmp_path, "append")
    restored = result.restore()
    assert restored.version == 3
    for read in (dataset(tmp_path).to_table(), lance.dataset(str(tmp_path)).to_table()):
        assert read["id"].to_pylist() == [0, 1]


def test_other_operations(tmp_path: Path) -> None:
    path = tmp_path
    write_dataset(rows(0), path)
    write_dataset(rows(1), path, "append")
    fragments: Any = write_fragments(rows(7), str(path))
    result = detached(path, LanceOperation.Overwrite(rows().schema, fragments), 1)
    assert result.to_table()["id"].to_pylist() == [7]
    assert detached(path, LanceOperation.Restore(1), 2).to_table()["id"].to_pylist() == [0]
    deleted = detached(path, LanceOperation.Delete([], [0], "id = 0"), 2)
    assert lance.dataset(str(path), version=deleted.version).to_table()["id"].to_pylist() == [1]
    transaction = deleted.read_transaction(deleted.version)
    assert transaction is not None
    assert transaction.name == "delete"
    assert dataset(path).to_table()["id"].to_pylist() == [0, 1]


def test_what_follows_one_is_detached_too(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(rows(0), path)
    result = detached(path, append(path, 1), 1)
    changes: list[Callable[[], Any]] = [
        lambda: LanceDataset.commit(path, append(path, 2), result.version),
        lambda: result.delete("id = 1"),
        lambda: result.update({"id": "id + 1"}),
    ]
    for change in changes:
        with pytest.raises(VersionNotFoundError, match=r"is detached, .* restore it first"):
            change()
    with pytest.raises(OptionError, match="is detached, and rows are appended to the newest version"):
        write_dataset(rows(2), result, "append")
    copies: list[Callable[[], Any]] = [
        lambda: result.create_branch("b"),
        lambda: result.deep_clone(tmp_path / "c"),
    ]
    for copy in copies:
        with pytest.raises(UnsupportedFormatError, match="no clone or branch begins with one"):
            copy()
    assert dataset(path).version == 1
    assert not (path / "tree").exists()


def test_what_is_refused_leaves_no_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with pytest.raises(TableNotFoundError, match="a detached version needs one"):
        detached(path, LanceOperation.Overwrite(rows().schema, []), 0)
    write_dataset(rows(0), path)
    write_dataset(rows(1), path, "append")
    with pytest.raises(RetryableConflictError, match="is strict"):
        detached(path, append(path, 2), 1, max_retries=0)
    with pytest.raises(VersionNotFoundError, match="does not exist"):
        detached(path, append(path, 2), 1 << 63)
    old = tmp_path / "old"
    lance.write_dataset(rows(0), str(old), enable_v2_manifest_paths=False)
    with pytest.raises(UnsupportedFormatError, match="V1 names has no detached versions"):
        detached(old, append(old, 1), 1)
    assert list(tmp_path.rglob("d*.manifest")) == []


@pytest.mark.parametrize("local", [True, False])
def test_a_put_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    """Here nothing is written then; of a far store nobody knows."""
    uri = str(tmp_path / "t") if local else f"memory://{tmp_path.name}-detached"
    write_dataset(rows(0), uri)
    fragments: Any = write_fragments(rows(1), uri)

    def failing(put: Any) -> Any:
        def call(store: Store, path: str, data: bytes) -> None:
            if path.endswith(".manifest"):
                raise StoreError("the disk is full")
            put(store, path, data)

        return call

    replace_request(monkeypatch, "put", failing)
    store, root = dataset(uri).store, dataset(uri).root
    before = sorted(result.path for result in store.list_objects(root, recursive=True))
    with pytest.raises(StoreError if local else CommitOutcomeUnknownError, match="the disk is full"):
        detached(uri, LanceOperation.Append(fragments), 1)  # type: ignore[arg-type]
    after = sorted(result.path for result in store.list_objects(root, recursive=True))
    assert len(after) - len(before) == (0 if local else 1)
