"""Processes of both implementations change one table at once; nothing is lost and nothing is done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.rowids import decode_row_versions, fragment_row_ids
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations import OPERATIONS
from spark_lance.table.operations.next_version import CommitContext
from spark_lance.table.versions.versions import list_versions, load_version
from tests.conftest import ROOT
from tests.table.commits.race_worker import SCHEMA, SPAN

WORKER = Path(__file__).with_name("race_worker.py")
SHARED = -1


def race(
    path: Path | str,
    writers: list[str],
    commits: int,
    *,
    stable: bool = False,
    options: dict[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Let the writers loose on a new table whose first fragment has rows of all of them."""
    keys = [SHARED, *(number * SPAN + i for number in range(len(writers)) for i in range(8))]
    owners = [key // SPAN for key in keys]
    rows = pa.table([pa.array(column, pa.int64()) for column in (keys, owners, [0] * len(keys))], SCHEMA)
    spark_lance.write_dataset(rows, path, enable_stable_row_ids=stable, storage_options=options)
    root = str(ROOT)
    running = [
        subprocess.Popen(
            [sys.executable, str(WORKER), who, str(path), str(number), str(commits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": root,
                "LANCE_LOG": "error",
                "RACE_STORAGE_OPTIONS": json.dumps(options),
            },
        )
        for number, who in enumerate(writers)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        reports = []
        for process in running:
            out, err = process.communicate(timeout=1200)
            assert process.returncode == 0, err
            reports.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in running:
            process.kill()
            process.wait()
    return reports


def check(
    path: Path | str,
    reports: list[dict[str, Any]],
    options: dict[str, Any] | None = None,
    pylance: bool = True,
) -> Counter[str]:
    """Compare the table with what the writers did; return how often which operation was committed."""
    expected = {int(key): value for report in reports for key, value in report["rows"].items()}
    expected[SHARED] = sum(report["done"].get("count", 0) for report in reports)
    datasets: list[Any] = [spark_lance.dataset(path, storage_options=options)]
    datasets += [lance.dataset(str(path), storage_options=options)] if pylance else []
    for dataset in datasets:
        result = dataset.to_table(columns=["key", "value"])
        pairs = sorted(zip(result["key"].to_pylist(), result["value"].to_pylist(), strict=True))
        assert pairs == sorted(expected.items())
        ids = dataset.to_table(columns=[], with_row_id=True)["_rowid"].to_pylist()
        assert len(set(ids)) == len(pairs)
    return history(path, options)


def plain(fragment: table_pb2.DataFragment) -> tuple[object, ...]:
    """A fragment with its sequences decoded, for one sequence can be encoded in several ways."""
    rest = table_pb2.DataFragment()
    rest.CopyFrom(fragment)
    sequences = []
    for name in ("inline_created_at_versions", "inline_last_updated_at_versions"):
        if fragment.HasField(name):
            sequences.append(decode_row_versions(getattr(fragment, name), fragment.physical_rows).tolist())
            rest.ClearField(name)
    if fragment.HasField("inline_row_ids"):
        sequences.append(fragment_row_ids(fragment).tolist())
        rest.ClearField("inline_row_ids")
    return rest.SerializeToString(deterministic=True), sequences


def history(path: Path | str, options: dict[str, Any] | None = None) -> Counter[str]:
    """Check that versions are without gaps and that each follows from its transaction."""
    store, root = open_store(path, options)
    table = TableRef(store, root)
    versions = [file.version for file in list_versions(table)]
    assert versions == list(range(1, len(versions) + 1))
    seen: Counter[str] = Counter()
    uuids = set()
    before = load_version(table, 1)
    for version in versions[1:]:
        manifest = load_version(table, version)
        transaction = read_transaction(table, manifest)
        assert transaction.name is not None
        build = OPERATIONS[transaction.name]
        assert build is not None
        context = CommitContext(root, transaction.file_name, 0)
        expected = build(before, transaction.operation, context)
        assert [*map(plain, expected.fragments)] == [*map(plain, manifest.fragments)]
        assert manifest.transaction_file == transaction.file_name
        uuids.add(transaction.uuid)
        seen[transaction.name] += 1
        seen["rebased"] += transaction.read_version + 1 < version
        before = manifest
    assert len(uuids) == len(versions) - 1
    return seen


def test_few_writers(tmp_path: Path) -> None:
    reports = race(tmp_path / "t", ["ours", "pylance"], 11)
    seen = check(tmp_path / "t", reports)
    assert sum(seen.values()) - seen["rebased"] >= 18


@pytest.mark.slow
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_many_writers(tmp_path: Path, stable: bool) -> None:
    reports = race(tmp_path / "t", ["ours", "pylance", "ours", "pylance", "ours"], 110, stable=stable)
    seen = check(tmp_path / "t", reports)
    assert sum(seen.values()) - seen["rebased"] >= 500
    assert min(seen[name] for name in ("append", "delete", "update", "rewrite")) > 0
    # Real collisions: versions made on top of ones that the writer did not know, and lost attempts. How many
    # of each there are depends on the machine.
    lost = sum(report["lost"] for report in reports)
    assert lost > 0
    assert seen["rebased"] + lost > 70, (seen, lost)
