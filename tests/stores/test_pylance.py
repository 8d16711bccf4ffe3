"""Tables on real servers, in turns with pylance: each reads and changes what the other wrote."""

from __future__ import annotations

import uuid
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from tests.stores.services import Service, gap

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_turns_with_pylance(service: Service) -> None:
    gap(service, "pylance")
    uri = service.uri(f"ü {uuid.uuid4().hex}")
    writers: list[Any] = [spark_lance, lance]
    expected: list[int] = []

    def check(version: int) -> None:
        for reader in writers:
            table = reader.dataset(uri, storage_options=service.options)
            assert table.version == version
            assert sorted(table.to_table()["a"].to_pylist()) == sorted(expected)
            assert len(table.versions()) == version

    for turn in range(4):
        rows = [turn * 10, turn * 10 + 1, turn * 10 + 2]
        data = pa.table({"a": pa.array(rows, pa.int64()), "b": [f"{i} ü" for i in rows]})
        expected.extend(rows)
        writers[turn % 2].write_dataset(data, uri, mode="append", storage_options=service.options)
        check(2 * turn + 1)
        writers[(turn + 1) % 2].dataset(uri, storage_options=service.options).delete(f"a = {turn * 10}")
        expected.remove(turn * 10)
        check(2 * turn + 2)
