"""Stores that lose answers, refuse, or are blind: what was acknowledged is there, nothing in part."""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import spark_lance
from spark_lance.errors import (
    CommitOutcomeUnknownError,
    LanceError,
    StoreAccessError,
    WriterFencedError,
)
from spark_lance.io.memory import MemoryStore
from spark_lance.io.retry import RetryPolicy
from spark_lance.memwal.compact import compact_wal
from spark_lance.memwal.shard_manifest import put_new
from spark_lance.memwal.writer import ShardWriter
from spark_lance.table.commits.commit_options import commit_options
from tests.memwal.tables import SHARD, Rows, as_rows, rows
from tests.wrapped_store import WrappedStore


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@dataclass(frozen=True)
class Faulty(WrappedStore):
    """A store whose conditional puts fail in all ways, if it is asked to."""

    chance: random.Random = field(default_factory=random.Random)
    share: list[float] = field(default_factory=lambda: [0.0])

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        fault = self.chance.choice(("lost", "never", "twice", "full", "late"))
        if self.chance.random() >= self.share[0]:
            fault = ""
        if fault == "never":
            raise ConnectionError("no route to store")
        if fault == "full":
            raise OSError(28, "no space left on device")
        super().put_if_absent(path, data, sync=sync)
        if fault == "twice":  # the client sends the request again by itself
            super().put_if_absent(path, data, sync=sync)
        if fault in ("lost", "late"):
            raise ConnectionError("reset by peer")

    def read(self, path: str) -> bytes:
        if self.chance.random() < self.share[0] / 8 and ("/wal/" in path or "/manifest/" in path):
            raise ConnectionError("no route to store")
        return super().read(path)


def made(seed: int) -> tuple[Any, Faulty]:
    """A table in memory, and its snapshot in a store that may fail."""
    uri = f"memory://memwal/{uuid.uuid4().hex}"
    dataset = spark_lance.write_dataset(rows((0, "base"), (1, "base")), uri).initialize_mem_wal()
    store = Faulty.around(MemoryStore(), chance=random.Random(seed))
    return dataset, store


def seen(dataset: Any) -> Rows:
    return as_rows(dataset.fresh().to_table())


def run(seed: int, steps: int) -> int:
    """Write, flush and compact on a store that fails; return how often an outcome stayed unknown."""
    dataset, store = made(seed)
    chance = random.Random(seed + 1)
    certain: Rows = {0: "base", 1: "base"}
    writer: ShardWriter | None = None
    unknown = 0
    for step in range(steps):
        store.share[0] = chance.choice((0.0, 0.3, 0.8, 0.95))
        pair = (chance.randrange(6), f"v{step}")
        added: Rows = {}
        try:
            if writer is None:
                at = replace(dataset.snapshot, table=replace(dataset.table, store=store))
                writer = ShardWriter(at, SHARD, {"max_memtable_rows": 4, "max_unflushed_memtable_bytes": 0})
            verb = chance.random()
            if verb < 0.15:
                with commit_options(retry=RetryPolicy(3, 0.001, 0.001, 1.0)):
                    compact_wal(replace(dataset.snapshot, table=replace(dataset.table, store=store)))
            elif verb < 0.3:
                writer.flush()
            else:
                added = {pair[0]: pair[1], pair[0] + 10: pair[1]}
                writer.put(rows(*added.items()))
                certain |= added
            failure: Exception | None = None
        except (OSError, LanceError) as error:
            failure = error
        if failure is not None:
            assert not isinstance(failure, WriterFencedError), "nobody else is there"
            unknown += isinstance(failure, CommitOutcomeUnknownError)
            store.share[0] = 0.0
            result = seen(dataset)
            # The call that failed was done as a whole, or not at all.
            assert result in (certain, certain | added), failure
            certain = result
            if writer is not None:
                writer.abandon()
            writer = None
        if step % 4 == 0:
            assert seen(dataset) == certain
    store.share[0] = 0.0
    if writer is not None:
        writer.abandon()
    assert seen(dataset) == certain
    dataset.wal.compact(flush=True)
    assert as_rows(spark_lance.dataset(dataset.uri).to_table()) == certain
    return unknown


def test_what_is_acknowledged_is_there() -> None:
    assert sum(run(seed, 40) for seed in range(3)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_what_is_acknowledged_is_there_in_long_runs(seed: int) -> None:
    run(seed, 200)


def test_one_put_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    real = MemoryStore.put_if_absent

    def scripted(*steps: str) -> str:
        path, left = f"/puts/{uuid.uuid4().hex}", list(steps)

        def put(own: MemoryStore, where: str, data: bytes, *, sync: bool = False) -> None:
            step = left.pop(0) if left else ""
            if step == "denied":
                raise StoreAccessError("read-only")
            if step == "rival":
                real(own, where, b"theirs")
            if step != "never":
                real(own, where, data, sync=sync)
            if step in ("lost", "never"):
                raise ConnectionError("reset by peer")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryStore, "put_if_absent", put)
            try:
                return str(put_new(store, path, b"ours", unique=True))
            except LanceError as error:
                return type(error).__name__

    assert scripted() == "True"
    assert scripted("lost") == "True"
    assert scripted("never", "never") == "True"
    assert scripted("rival") == "False"
    assert scripted("never", "rival") == "False"
    assert scripted("denied") == "StoreAccessError"
    assert scripted(*["never"] * 6) == "CommitOutcomeUnknownError"
    # Where others may write the same bytes, finding them proves nothing.
    path = f"/puts/{uuid.uuid4().hex}"
    store.put(path, b"ours")
    assert put_new(store, path, b"ours", unique=True)
    assert not put_new(store, path, b"ours", unique=False)
