"""Uploads in the background: their order, their errors, and the files of a failed write."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import dataset, write_dataset
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import open_store
from spark_lance.io.uploads import background_uploads, finish_uploads, settle_uploads, upload

FAR, _ = open_store("memory://t")


def failing() -> None:
    raise OSError("the network is gone")


def test_a_local_store_and_code_outside_of_a_block_upload_at_once(tmp_path: Path) -> None:
    local, _ = open_store(tmp_path)
    uploads: list[int] = []
    upload(lambda: uploads.append(1))
    assert uploads == [1]
    with background_uploads(local):
        upload(lambda: uploads.append(2))
        assert uploads == [1, 2]
        with pytest.raises(OSError, match="network"):
            upload(failing)


def test_a_block_goes_on_while_files_are_sent() -> None:
    go_on, end = threading.Event(), threading.Event()

    def send() -> None:
        assert go_on.wait(10)
        end.set()

    with background_uploads(FAR):
        with background_uploads(FAR):
            upload(send)
        assert not end.is_set()
        go_on.set()
        finish_uploads()
        assert end.is_set()


def test_the_end_of_a_block_waits() -> None:
    uploads: list[int] = []
    with background_uploads(FAR):
        for number in range(20):
            upload(partial(uploads.append, number))
    assert sorted(uploads) == list(range(20))


@pytest.mark.parametrize("finish", [finish_uploads, lambda: None])
def test_errors_are_raised_once(finish: Callable[[], None]) -> None:
    def run() -> None:
        with background_uploads(FAR):
            upload(failing)
            finish()

    with pytest.raises(OSError, match="network"):
        run()
    with background_uploads(FAR):
        upload(failing)
        settle_uploads()
        finish_uploads()


def test_an_error_of_the_block_comes_before_those_of_uploads() -> None:
    def run() -> None:
        with background_uploads(FAR):
            upload(failing)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run()


@pytest.mark.parametrize("action", ["append", "delete", "update", "merge"])
def test_a_write_whose_upload_fails_leaves_no_version_and_no_file(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"memory://{uuid.uuid4().hex}"
    rows = pa.table({"id": [1, 2, 3], "value": ["a", "b", "c"]})
    table = write_dataset(rows, uri)
    files = set(fsspec.filesystem("memory").find(table.root))
    put, create = MemoryStore.put, MemoryStore.create

    def failing_put(store: MemoryStore, path: str, data: bytes) -> None:
        if "/_deletions/" in path:
            failing()
        put(store, path, data)

    def failing_create(store: MemoryStore, path: str) -> object:
        output = create(store, path)
        output.close = failing  # type: ignore[method-assign]
        return output

    monkeypatch.setattr(MemoryStore, "put", failing_put)
    monkeypatch.setattr(MemoryStore, "create", failing_create)
    actions: dict[str, Callable[[], object]] = {
        "append": lambda: write_dataset(rows, uri, mode="append"),
        "delete": lambda: table.delete("id = 1"),
        "update": lambda: table.update({"value": "'x'"}, "id = 1"),
        "merge": lambda: table.merge_insert("id").when_matched_update_all().execute(rows.slice(0, 1)),
    }
    with pytest.raises(OSError, match="network"):
        actions[action]()
    monkeypatch.undo()
    assert set(fsspec.filesystem("memory").find(table.root)) == files
    assert dataset(uri).version == 1
    actions[action]()
    assert dataset(uri).version == 2
