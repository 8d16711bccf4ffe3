"""Shards on S3: in turns with pylance, and with the faults that stores have."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import lance
import pytest

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import CommitOutcomeUnknownError, StoreError, WriterFencedError
from tests import object_store
from tests.memwal.tables import OTHER, SHARD, Rows, as_rows, rows
from tests.object_store import (
    Server,
    cut_short,
    lost_answer,
    never_arrived,
    server_error,
    slow,
    storage_options,
    throttled,
)

FAULTS = [throttled, server_error, never_arrived, lost_answer, slow(0.1)]


@pytest.fixture(scope="module")
def service(s3_server: Server) -> Iterator[Server]:
    s3 = object_store.client(s3_server, "s3")
    object_store.make_bucket(s3)
    yield s3_server
    s3.close()


@pytest.fixture
def server(service: Server) -> Server:
    service.forget()
    return service


@pytest.fixture
def options(server: Server) -> dict[str, Any]:
    return storage_options(server, client_max_retries="4")


@pytest.fixture
def uri() -> str:
    return f"s3://bucket/memwal/{uuid.uuid4().hex}"


def opened(uri: str, options: dict[str, Any]) -> LanceDataset:
    return dataset(uri, storage_options=options)


def seen(uri: str, options: dict[str, Any]) -> Rows:
    return as_rows(opened(uri, options).fresh().to_table())


def test_turns_with_pylance(uri: str, options: dict[str, Any]) -> None:
    write_dataset(rows((1, "base"), (2, "base")), uri, storage_options=options).initialize_mem_wal()
    expected: Rows = {1: "base", 2: "base"}
    chance = random.Random(7)
    for turn in range(4):
        for shard, first in ((SHARD, 0), (OTHER, 1)):
            pairs = [(first + 2 * chance.randrange(6), f"t{turn}.{n}") for n in range(3)]
            if (turn + first) % 2:
                theirs = lance.dataset(uri, storage_options=options).mem_wal_writer(str(shard))
                theirs.put(rows(*pairs))
                theirs.close()
            else:
                with opened(uri, options).mem_wal_writer(shard, max_memtable_rows=2) as log:
                    for pair in pairs:
                        log.put(rows(pair))
                    log.delete({"id": [first + 100]})
                    if turn == 2:
                        log.abandon()
            expected.update(pairs)
        assert seen(uri, options) == expected
        assert as_rows(opened(uri, options).fresh().lookup(list(expected))) == expected
        if turn % 2:
            opened(uri, options).wal.compact()
            opened(uri, options).wal.collect(older_than=timedelta(0))
            assert seen(uri, options) == expected
    opened(uri, options).wal.compact(flush=True)
    assert as_rows(lance.dataset(uri, storage_options=options).to_table()) == expected
    assert seen(uri, options) == expected


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", ["/wal/", "/manifest/", "_gen_", "_versions/"])
def test_faults_that_pass_change_nothing(
    uri: str, options: dict[str, Any], server: Server, fault: Any, place: str
) -> None:
    write_dataset(rows((1, "base")), uri, storage_options=options).initialize_mem_wal()
    for method in ("PUT", "GET"):
        server.forget()
        with opened(uri, options).mem_wal_writer(SHARD, max_memtable_rows=3) as log:
            server.fault(fault, method, place, times=2)
            log.put(rows((1, method), (2, method)))
            log.put(rows((3, method)))
        server.fault(fault if fault is not lost_answer else cut_short, "GET", place, times=1)
        assert seen(uri, options) == dict.fromkeys((1, 2, 3), method)
        server.fault(fault, method, place, times=2)
        opened(uri, options).wal.compact()
        assert seen(uri, options) == dict.fromkeys((1, 2, 3), method)


def test_an_outcome_that_stays_unknown(
    uri: str, options: dict[str, Any], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    write_dataset(rows((1, "base")), uri, storage_options=options).initialize_mem_wal()
    log = opened(uri, options).mem_wal_writer(SHARD)
    server.fault(server_error, "PUT", "/wal/", times=99)
    with pytest.raises(CommitOutcomeUnknownError):
        log.put(rows((2, "lost")))
    server.forget()
    with pytest.raises(CommitOutcomeUnknownError):
        log.put(rows((3, "after")))
    with pytest.raises((CommitOutcomeUnknownError, StoreError)):
        log.close()
    assert seen(uri, options) == {1: "base"}
    with opened(uri, options).mem_wal_writer(SHARD) as again:
        again.put(rows((4, "d")))
        with opened(uri, options).mem_wal_writer(SHARD) as third:
            third.put(rows((5, "e")))
        with pytest.raises(WriterFencedError):
            again.put(rows((4, "zombie")))
        again.abandon()
    assert seen(uri, options) == {1: "base", 4: "d", 5: "e"}
