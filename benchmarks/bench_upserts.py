"""Cost of small upserts: with a MemWAL of one and four shards, and with merges of the same rows.

    python -m benchmarks.bench_upserts [--rows N] [--batch B] [--seconds S]

Each call writes `--batch` rows of 1 KB to a table of `--rows` rows with a BTREE on its key. Half of the keys
are new. Each mode runs for `--seconds`. pylance uses its own writer (one shard) and its merges.

    log 1, log 4     upsert_log().put to 1 and 4 shards, including the SSTables written during that time
    threads 1, 4     the same with four threads that share the log; each one puts one batch at a time
    synced           log 1 with durability="synced"
    merge            merge_insert of the same batch, one version per call
    visible          milliseconds from the call of put to the end of fresh().lookup of one of its rows
    compact          rows per second that compact_wal merges into the table
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser

_KEY = {"lance-schema:unenforced-primary-key": "true"}
_SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False, metadata=_KEY), pa.field("payload", pa.binary())]
)
_PAYLOAD = 1016
_THREADS = 4


class Rows:
    """Batches of rows of 1 KB."""

    def __init__(self, rows: int, batch: int) -> None:
        self._random = np.random.default_rng(7)
        self._rows, self._batch = rows, batch
        self._bytes = self._random.bytes((batch + 1) * _PAYLOAD)
        self._next = rows

    def table(self, keys: Any) -> pa.Table:
        data = np.frombuffer(self._random.bytes(len(keys) * _PAYLOAD), np.uint8)
        offsets = np.arange(len(keys) + 1, dtype=np.int32) * _PAYLOAD
        payload = pa.Array.from_buffers(
            pa.binary(), len(keys), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        return pa.table({"id": pa.array(keys, pa.int64()), "payload": payload}, schema=_SCHEMA)

    def __call__(self) -> pa.Table:
        old = self._random.choice(self._rows, self._batch // 2, replace=False)
        new = np.arange(self._next, self._next + self._batch - len(old))
        self._next += len(new)
        return self.table(np.concatenate([old, new]))


def make(path: Path, rows: int, shards: int) -> None:
    """Write the table, its index and its MemWAL."""
    data = Rows(rows, 1).table(np.arange(rows))
    dataset = spark_lance.write_dataset(data, path).create_scalar_index("id", "BTREE")
    dataset.initialize_mem_wal(bucket_column="id", num_buckets=shards)


def pace(
    batches: list[pa.Table], work: Callable[[pa.Table], object], end: Callable[[], object], seconds: float
) -> float:
    """Return the rows per second of a way to write."""
    done, start = 0, time.perf_counter()
    for batch in batches:
        work(batch)
        done += batch.num_rows
        if time.perf_counter() - start > seconds:
            break
    end()
    return done / (time.perf_counter() - start)


def shared(
    batches: list[pa.Table], work: Callable[[pa.Table], object], end: Callable[[], object], seconds: float
) -> float:
    """Return the rows per second of a way to write that four threads share."""
    start = time.perf_counter()

    def one(first: int) -> int:
        done = 0
        for batch in batches[first::_THREADS]:
            work(batch)
            done += batch.num_rows
            if time.perf_counter() - start > seconds:
                break
        return done

    with ThreadPoolExecutor(_THREADS) as pool:
        done = sum(pool.map(one, range(_THREADS)))
    end()
    return done / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--batch", type=int, default=1000)
    options.add_argument("--seconds", type=float, default=5.0)
    arguments = options.parse_args()
    results = Results("bench_upserts", arguments.keep)
    # Made before, so that making them is not measured.
    source = Rows(arguments.rows, arguments.batch)
    batches = [source() for _ in range(min(2000, 400_000 // arguments.batch))]
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:

        def table(name: str, shards: int = 1) -> Path:
            path = Path(folder) / name
            make(path, arguments.rows, shards)
            return path

        for name, shards, way, settings in (
            ("log 1", 1, pace, {}),
            ("log 4", 4, pace, {}),
            ("threads 1", 1, shared, {}),
            ("threads 4", 4, shared, {}),
            ("synced", 1, pace, {"durability": "synced"}),
        ):
            path = table(name, shards)
            log = spark_lance.dataset(path).upsert_log(**settings)
            figures[name] = way(batches, log.put, log.close, arguments.seconds)
        writer = lance.dataset(str(table("theirs"))).mem_wal_writer(str(uuid.uuid4()))
        figures["log 1 pylance"] = pace(batches, writer.put, writer.close, arguments.seconds)

        def merged(opened: Callable[[str], Any]) -> Callable[[pa.Table], object]:
            path = str(table(f"merge {opened.__module__}"))

            def merge(batch: pa.Table) -> object:
                builder = opened(path).merge_insert("id").when_matched_update_all()
                return builder.when_not_matched_insert_all().execute(batch)

            return merge

        nothing = lambda: None  # noqa: E731
        figures["merge"] = pace(batches, merged(spark_lance.dataset), nothing, arguments.seconds)
        figures["merge pylance"] = pace(batches, merged(lance.dataset), nothing, arguments.seconds)

        path = table("visible", 4)
        times = []
        with spark_lance.dataset(path).upsert_log() as log:
            for number in range(30):
                batch = source.table([number, arguments.rows + number])
                start = time.perf_counter()
                log.put(batch)
                row = spark_lance.dataset(path).fresh().lookup([arguments.rows + number])
                times.append((time.perf_counter() - start) * 1000)
                assert row.num_rows == 1
        figures["visible"] = statistics.median(times)
        path = Path(folder) / "log 4"
        start = time.perf_counter()
        compacted = spark_lance.dataset(path).wal.compact()
        figures["compact"] = compacted.rows_upserted / (time.perf_counter() - start)
    show(results, figures)


def show(results: Results, figures: dict[str, float]) -> None:
    """Print the figures, and keep them if that is asked for."""
    for name, unit, peer, peer_name in (
        ("log 1", "1/s", "log 1 pylance", "pylance"),
        ("log 4", "1/s", "merge", "merge_insert"),
        ("threads 1", "1/s", None, ""),
        ("threads 4", "1/s", None, ""),
        ("synced", "1/s", None, ""),
        ("merge", "1/s", "merge pylance", "pylance"),
        ("visible", "ms", None, ""),
        ("compact", "1/s", None, ""),
    ):
        other = None if peer is None else figures[peer]
        text = "" if other is None else f"   {peer_name} {other:,.0f}   {figures[name] / other:.2f}x"
        print(f"{name:10} {figures[name]:12,.1f} {unit}{text}")
        metric = "time, median" if unit == "ms" else "rows per second"
        peers = None if other is None else {peer_name: other}
        results.add(name, metric, unit, figures[name], peers, more_is_better=unit != "ms")
    results.save()


if __name__ == "__main__":
    main()
