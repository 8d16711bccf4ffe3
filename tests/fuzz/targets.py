"""What the fuzzer mutates, and what it does with the result: one target per kind of stored object."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import spark_lance
from spark_lance.cli.html_commands import html_page
from spark_lance.errors import LanceError
from spark_lance.index.vector import search
from spark_lance.io.store import open_store
from spark_lance.proto import index_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.operations.append import append_message
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import list_versions, load_latest, load_version
from tests.file.damage import Known, read_everything
from tests.fuzz.mutations import (
    Mutation,
    mutate_any_message,
    mutate_arrow,
    mutate_bytes,
    mutate_index_file,
    mutate_json_object,
    mutate_lance_file,
    mutate_manifest,
    mutate_transaction,
)
from tests.index.test_damage import ASKED, answer, made
from tests.memwal.tables import SHARD
from tests.memwal.tables import rows as wal_rows

__all__ = ["TARGETS", "Target"]

Step = Callable[[], object]


@dataclass(frozen=True)
class Target:
    """One kind of stored object.

    Attributes:
        make: makes a table (or a folder of data files) at a path.
        files: globs of the files to mutate -> the mutation.
        steps: yields what to do with a table of which a file was mutated; the number varies it.
        share: of the time, compared with other targets.
        newest: mutate the newest manifest more often than other files.
    """

    make: Callable[[Path], object]
    files: Mapping[str, Mutation]
    steps: Callable[[Path, int, Path], Iterator[Step]]
    share: float = 1.0
    newest: bool = False

    def choose(self, choices: list[tuple[Path, Mutation]], rng: random.Random) -> tuple[Path, Mutation]:
        """Return one of the choices."""
        if self.newest and rng.random() < 0.5:
            # The first by name, because names of manifests count down.
            manifests = [choice for choice in choices if choice[0].suffix == ".manifest"]
            return min(manifests, key=lambda choice: choice[0].name)
        return rng.choice(choices)

    def choices(self, root: Path) -> list[tuple[Path, Mutation]]:
        """Return the files that can be mutated, in an order that does not depend on their random names."""
        return [
            (file.relative_to(root), mutation)
            for pattern, mutation in self.files.items()
            for file in sorted(root.glob(pattern), key=lambda file: (file.parent.name, file.stat().st_size))
        ]


def run_steps(steps: Iterator[Step]) -> LanceError | None:
    """Run all steps, also those behind one that was refused; return the first refusal.

    What the iterator itself does between two steps may be refused, too, and ends the steps.
    """
    refusal: LanceError | None = None
    while True:
        try:
            if (step := next(steps, None)) is None:
                return refusal
            step()
        except LanceError as error:
            _check_cause(error)
            refusal = refusal or error


def _check_cause(error: BaseException | None) -> None:
    """Raise the MemoryError behind a refusal: the memory was asked for, and only the limit refused it."""
    causes: list[BaseException] = []
    while error is not None:
        if isinstance(error, MemoryError):
            raise error
        if error in causes:
            raise RuntimeError("an error is its own cause") from error
        causes.append(error)
        error = error.__cause__


def make_table(path: Path, *, stable_row_ids: bool = False) -> None:
    """Make a table with indices, deletion files of both kinds, tags, a branch and a reused index."""
    ids = range(60)
    rows = pa.table(
        {
            "a": pa.array(ids, pa.int64()),
            "b": [str(i % 7) for i in ids],
            "v": pa.array([[i, 0.5] for i in ids], pa.list_(pa.float32(), 2)),
            "s": [{"x": i, "y": [str(i)]} for i in ids],
        }
    )
    dataset: Any = lance.write_dataset(rows, path, max_rows_per_file=20, enable_stable_row_ids=stable_row_ids)
    dataset.create_scalar_index("a", "BTREE")
    dataset.create_scalar_index("b", "BITMAP")
    dataset.delete("a in (1, 2)")
    stale = lance.dataset(str(path), version=dataset.version)
    dataset.delete("a = 25")
    stale.delete("a = 27")
    dataset = lance.dataset(str(path))
    dataset.update({"b": "'new'"}, where="a = 50")
    dataset.tags.create("one", 1)
    dataset.create_branch("side", 2)
    dataset.update_config({"lance.auto_cleanup.interval": "2", "lance.auto_cleanup.older_than": "30days"})


def read_steps(path: Path) -> Iterator[Step]:
    """Yield everything that reads a table."""
    opened: list[Any] = []
    yield lambda: opened.append(spark_lance.dataset(path))
    if not opened:
        return
    dataset = opened[0]
    yield dataset.count_rows
    yield dataset.to_table
    yield lambda: dataset.to_table(["a"], with_row_id=True, with_row_address=True)
    yield lambda: dataset.to_table(["a"], "a >= 30 AND b = '3'")
    yield lambda: dataset.take([0, 10, 50])
    yield dataset.describe_indices
    yield dataset.list_indices
    yield dataset.versions
    yield lambda: dataset.stats.dataset_stats()
    yield lambda: [fragment.count_rows() for fragment in dataset.get_fragments()]
    yield lambda: html_page(dataset, "0")
    yield dataset._repr_html_
    yield lambda: repr(dataset)
    yield lambda: dataset.diff(1)
    yield lambda: read_transaction(dataset.table, dataset.manifest)
    yield lambda: verify(Snapshot(dataset.table, dataset.manifest))
    yield dataset.tags.list
    yield dataset.branches.list


def table_steps(path: Path, number: int, template: Path) -> Iterator[Step]:
    """Yield reads, and then one way to change the table."""
    yield from read_steps(path)
    yield from itertools.islice(change_steps(path), number % 7, number % 7 + 1)


def change_steps(path: Path) -> Iterator[Step]:
    """Yield the ways to change a table."""
    yield lambda: spark_lance.dataset(path).optimize.compact_files()
    yield lambda: spark_lance.dataset(path).delete("a = 3")
    yield lambda: commit_late(path)
    yield lambda: spark_lance.dataset(path).optimize.optimize_indices()
    yield lambda: spark_lance.dataset(path).update({"b": "'x'"}, "a = 40")
    yield lambda: spark_lance.dataset(path).cleanup_old_versions(timedelta(days=1))
    yield lambda: spark_lance.dataset(path, version=1).restore()


def commit_late(path: Path) -> None:
    """Commit as a writer that read an older version and has to look at what others did."""
    table = TableRef(*open_store(path))
    version = load_latest(table).version
    committed = commit_operation(table, append_message([]), read_version=version - 2)
    load_version(table, committed.version)


def transaction_steps(path: Path, number: int, template: Path) -> Iterator[Step]:
    """Read the transaction of each version, and commit after it."""
    table = TableRef(*open_store(path))
    for file in list_versions(table):
        yield lambda file=file: read_transaction(table, load_version(table, file.version))  # type: ignore[misc]
    dataset = spark_lance.dataset(path)
    yield lambda: dataset.diff(1)
    yield lambda: dataset.delta(compared_against=1).list_transactions()
    yield dataset.versions
    yield lambda: commit_late(path)
    yield lambda: spark_lance.dataset(path, version=dataset.version - 1).delete("a = 33")


def deletion_steps(path: Path, number: int, template: Path) -> Iterator[Step]:
    """Read rows, and merge deletion files."""
    dataset = spark_lance.dataset(path)
    yield dataset.to_table
    yield dataset.count_rows
    yield lambda: dataset.take([0, 20, 40])
    yield lambda: verify(Snapshot(dataset.table, dataset.manifest))
    yield lambda: dataset.delete("a = 3 or a = 29")
    yield lambda: spark_lance.dataset(path).optimize.compact_files()


def make_index(path: Path, kind: str, builder: str) -> None:
    """Make a table with one index, and rows that it does not cover."""
    made(path, kind, builder)
    dataset = spark_lance.dataset(path)
    spark_lance.write_dataset(dataset.to_table(limit=20), path, mode="append")


def index_steps(path: Path, number: int, template: Path, *, kind: str) -> Iterator[Step]:
    """Search by the index, describe it, verify it, and merge it with rows that it does not cover."""
    search._MIN_GRAPH_ROWS = 0
    yield lambda: answer(str(path), kind)
    dataset = spark_lance.dataset(path)
    name = dataset.list_indices()[0]["name"]
    if kind == "NGRAM":
        yield lambda: dataset.to_table(["id"], "regexp_like(t, 'number 1[23]')")
    if kind == "BTREE":
        yield lambda: dataset.to_table(["id"], "n = 37")
        yield lambda: dataset.to_table(["id"], order_by="n", limit=5)
        yield lambda: dataset.count_rows("n > 10")
    if kind == "INVERTED":
        for query in (
            spark_lance.query.PhraseQuery("the word3", "t"),
            spark_lance.query.MatchQuery("wrd3", "t", fuzziness=1),
        ):
            yield lambda query=query: dataset.to_table(["id"], full_text_query=query, limit=5)  # type: ignore[misc]
    yield lambda: dataset.index_statistics(name)
    if number % 3 == 0:
        yield lambda: spark_lance.dataset(path).optimize.optimize_indices(
            num_indices_to_merge=(number // 3) % 3
        )
    elif number % 3 == 1:
        yield lambda: verify(Snapshot(dataset.table, dataset.manifest))
        yield lambda: spark_lance.dataset(path).optimize.compact_files()


def make_mem_wal(path: Path) -> None:
    """Make a table with SSTables and a log behind them."""
    dataset = spark_lance.write_dataset(wal_rows(*((key, "base") for key in range(10))), path)
    dataset = dataset.initialize_mem_wal()
    log = dataset.mem_wal_writer(SHARD)
    log.put(wal_rows((3, "gen 1"), (4, "gen 1"), (5, "old"), (5, "gen 1")))
    log.flush()
    log.put(wal_rows((4, "gen 2"), (5, "gen 2"), (6, "gen 2")))
    log.delete({"id": [8]})
    log.flush()
    log.put(wal_rows((5, "log"), (6, "log"), (20, "log")))
    log.delete({"id": [7, 6]})
    log.abandon()


def wal_steps(path: Path, number: int, template: Path) -> Iterator[Step]:
    """Read the table with its log, replay the log, and merge it."""
    yield lambda: spark_lance.dataset(path).fresh().to_table()
    yield lambda: spark_lance.dataset(path).fresh().count_rows()
    yield lambda: spark_lance.dataset(path).fresh().to_table(filter="id > 4")
    if number % 3 == 0:
        yield lambda: replay(path)
    elif number % 3 == 1:
        yield lambda: spark_lance.dataset(path).wal.compact()
    else:
        yield lambda: spark_lance.dataset(path).fresh(accept_loss=True).to_table()
        yield lambda: spark_lance.dataset(path).wal.shards()


def replay(path: Path) -> None:
    """Claim the shard, which replays its log, and write."""
    log = spark_lance.dataset(path).mem_wal_writer(SHARD)
    try:
        log.put(wal_rows((30, "more")))
        log.flush()
    finally:
        log.abandon()


def make_files(path: Path, version: str) -> None:
    """Write the small files of the corruption campaign."""
    from tests.file.test_corruption_campaign import files

    path.mkdir(parents=True)
    list(files(path, version))  # type: ignore[arg-type]


def make_planar_files(path: Path) -> None:
    """Write small files of version 2.3, with pages of dense and of sparse structure."""
    from tests.file.v2_1.pylance_file import pylance_file
    from tests.file.v2_1.read.test_planar import forced
    from tests.file.v2_1.test_corruption import SMALL

    path.mkdir(parents=True)
    for name, table in SMALL.items():
        for kind, rows in (("dense", table), ("sparse", forced(table))):
            root = path / f"{kind} {name}"
            try:
                file = pylance_file(rows, "2.3", root)
            except BaseException as error:  # pylance panics on some types: there are no such files
                if isinstance(error, KeyboardInterrupt):
                    raise
            else:
                Path(file).rename(root.with_suffix(".lance"))
            shutil.rmtree(root, ignore_errors=True)


@dataclass
class _Files:
    known: dict[str, Known] = field(default_factory=dict)

    def steps(self, path: Path, number: int, template: Path) -> Iterator[Step]:
        """Read the file that differs from its template, with what a manifest would say about it."""
        name = (path / "mutated").read_text()
        store, _ = open_store(path)
        if name not in self.known:
            self.known[name] = Known.of(store, str(template / name))
        yield lambda: read_everything(store, str(path / name), self.known[name]).validate()
        yield lambda: spark_lance.file.reader.open_file(store, str(path / name)).schema


def make_sidecars(path: Path) -> None:
    """Make a table with blobs, stable row ids and lineage."""
    make_table(path, stable_row_ids=True)


KINDS = (
    *ASKED,
    "IVF_FLAT",
    "IVF_PQ",
    "IVF_SQ",
    "IVF_RQ",
    "IVF_HNSW_FLAT",
    "IVF_HNSW_PQ",
    "IVF_HNSW_SQ",
)
VERSIONS: Sequence[str] = ("legacy", "2.0", "2.1", "2.2")
_SHARD_MANIFEST: Mutation = partial(mutate_any_message, kind=index_pb2.ShardManifest)

TARGETS: dict[str, Target] = {
    "manifest": Target(make_table, {"_versions/*.manifest": mutate_manifest}, table_steps, 3, True),
    "manifest of stable row ids": Target(
        make_sidecars, {"_versions/*.manifest": mutate_manifest}, table_steps, 2, True
    ),
    "transaction": Target(
        make_table,
        {"_transactions/*.txn": mutate_transaction, "_versions/*.manifest": mutate_manifest},
        transaction_steps,
    ),
    "deletion file": Target(
        make_table, {"_deletions/*.arrow": mutate_arrow, "_deletions/*.bin": mutate_bytes}, deletion_steps
    ),
    "references": Target(
        make_table,
        {"_refs/*/*.json": mutate_json_object, "_versions/*.json": mutate_json_object},
        table_steps,
        0.3,
    ),
    "shard manifest": Target(make_mem_wal, {"_mem_wal/*/manifest/*.binpb": _SHARD_MANIFEST}, wal_steps),
    "WAL entry": Target(make_mem_wal, {"_mem_wal/*/wal/*.arrow": mutate_arrow}, wal_steps),
    "SSTable": Target(
        make_mem_wal,
        {
            "_mem_wal/*/*_gen_*/_versions/*.manifest": mutate_manifest,
            "_mem_wal/*/*_gen_*/data/*": mutate_lance_file,
        },
        wal_steps,
        0.5,
    ),
    **{
        f"index {kind} by {builder}": Target(
            partial(make_index, kind=kind, builder=builder),
            {"_indices/*/*": mutate_index_file},
            partial(index_steps, kind=kind),
            0.7,
        )
        for kind in KINDS
        for builder in ("ours", "pylance")
    },
    **{
        f"data file {version}": Target(
            partial(make_files, version=version), {"*.lance": mutate_lance_file}, _Files().steps
        )
        for version in VERSIONS
    },
    "data file 2.3": Target(make_planar_files, {"*.lance": mutate_lance_file}, _Files().steps),
}
