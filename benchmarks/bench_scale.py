"""Time and memory of opening, planning and committing with very many fragments, compared with pylance.

    python -m benchmarks.bench_scale [--fragments 10000 100000 1000000] [--no-pylance]

The tables have manifests but no data files, so a step that reads a data file fails. A commit must never read
one. Every step runs in its own process on a copy of the table. Time is processor time, which depends little
on other load of the machine. Memory is the growth of the resident set after the imports.

    open     read the newest version
    tasks    open, then plan a scan of one column into one task per fragment
    append   open, then commit a new fragment
    delete   open, then commit a delete without rows
    config   open, then commit a setting
    add      open, then commit a column that is null everywhere
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser, run_alone
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation, create_table
from spark_lance.table.format.manifest import pack_manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.append import append_message
from spark_lance.table.operations.delete import delete_message

SCHEMA = pa.schema([pa.field(name, pa.int64()) for name in "abcde"])


def make(path: Path, fragments: int) -> None:
    """Make a table of fragments of a million rows each, without their files."""
    table = TableRef(*open_store(path))
    created = create_table(table, spark_lance.file.base.schema.Schema.from_arrow(SCHEMA))
    message = table_pb2.Manifest()
    message.CopyFrom(created.message)
    for number in range(fragments):
        fragment = message.fragments.add(id=number, physical_rows=1_000_000)
        name = f"{number:024b}{uuid.uuid4().hex[6:]}.lance"
        columns = list(range(5))
        fragment.files.add(
            path=name,
            fields=columns,
            column_indices=columns,
            file_major_version=2,
            file_minor_version=2,
            file_size_bytes=40_000_000,
        )
    message.max_fragment_id = fragments - 1
    transaction = transaction_pb2.Transaction(read_version=0, uuid=str(uuid.uuid4()))
    transaction.append.SetInParent()
    Path(created.path).write_bytes(pack_manifest(message, b"", transaction.SerializeToString()))


def _ours_append(dataset: Any) -> None:
    file = table_pb2.DataFile(path="x.lance", fields=[0], column_indices=[0], file_major_version=2)
    file.file_minor_version, file.file_size_bytes = 2, 500
    fragment = table_pb2.DataFragment(files=[file], physical_rows=1)
    _commit(dataset, append_message([fragment]))


def _commit(dataset: Any, operation: Any) -> None:
    commit_operation(dataset.table, operation, read_version=dataset.version)


OURS: dict[str, Callable[[Any], object]] = {
    "open": lambda ds: ds,
    "tasks": lambda ds: ds.snapshot.scan(["a"]).tasks(),
    "append": _ours_append,
    "delete": lambda ds: _commit(ds, delete_message([], [], "false")),
    "config": lambda ds: ds.update_config({"k": "v"}),
    "add": lambda ds: ds.add_columns(pa.field("n", pa.int64())),
}


def _their_append(dataset: Any) -> None:
    import lance
    from lance.fragment import DataFile, FragmentMetadata

    fragment = FragmentMetadata(0, [DataFile("x.lance", [0], [0], 2, 2, 500)], 1)
    lance.LanceDataset.commit(dataset, lance.LanceOperation.Append([fragment]), read_version=dataset.version)


def _their_delete(dataset: Any) -> None:
    import lance

    operation = lance.LanceOperation.Delete([], [], "false")
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


THEIRS: dict[str, Callable[[Any], object]] = {
    "open": lambda ds: ds,
    "tasks": lambda ds: ds.get_fragments(),
    "append": _their_append,
    "delete": _their_delete,
    "config": lambda ds: ds.update_config({"k": "v"}),
    "add": lambda ds: ds.add_columns(pa.field("n", pa.int64())),
}


def measure(side: str, step: str, path: str) -> None:
    """Take one step and print its seconds and megabytes."""
    opened: Callable[[str], Any] = spark_lance.dataset
    if side == "pylance":
        import lance

        opened = lance.dataset
        import lance.fragment
    # Whatever is loaded on first use is loaded now.
    opened(path + ".small")
    before = _resident()
    start = time.process_time()
    result = (OURS if side == "ours" else THEIRS)[step](opened(path))
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(seconds, max(0.0, peak - before), result is None, flush=True)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(side: str, step: str, table: Path) -> tuple[float, float]:
    """Take one step in a process of its own, on a copy of the table; return seconds and MB."""
    copy = table.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(table, copy)
    printed = run_alone(["-m", "benchmarks.bench_scale", "--measure", side, step, str(copy)])
    seconds, size, _ = printed.split()
    return float(seconds), float(size)


def main() -> None:
    """Print a table of seconds of processor time and of megabytes."""
    arguments_parser = parser(__doc__)
    arguments_parser.add_argument("--fragments", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments_parser.add_argument("--no-pylance", action="store_true")
    arguments_parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = arguments_parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    results = Results("bench_scale", options.keep)
    sides = ["ours"] if options.no_pylance else ["ours", "pylance"]
    print(f"{'fragments':>10}  {'step':8}" + "".join(f"{side:>12} s{'MB':>8}" for side in sides))
    with tempfile.TemporaryDirectory() as folder:
        for count in options.fragments:
            table = Path(folder) / "table"
            shutil.rmtree(table, ignore_errors=True)
            make(table, count)
            make_small(Path(folder))
            size = sum(file.stat().st_size for file in table.rglob("*.manifest"))
            for step in OURS:
                cells = [run(side, step, table) for side in sides]
                figures = "".join(f"{seconds:14.3f}{memory:8.0f}" for seconds, memory in cells)
                print(f"{count:10}  {step:8}{figures}", flush=True)
                for i, (metric, unit) in enumerate((("processor time", "s"), ("memory", "MB"))):
                    peers = {side: cell[i] for side, cell in zip(sides, cells, strict=True) if side != "ours"}
                    results.add(f"{count:,} fragments: {step}", metric, unit, cells[0][i], peers)
            print(f"{count:10}  manifest {size / 2**20:.1f} MB")
    results.save()


def make_small(folder: Path) -> None:
    """Make the table that is opened to warm up."""
    small = folder / "copy.small"
    if not small.exists():
        make(small, 1)


if __name__ == "__main__":
    main()
