"""What is in a table's folder: rows, the files that versions name, and those that no version names."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import lance

import spark_lance
from spark_lance.table.format.paths import HINT_NAME
from spark_lance.table.maintenance.verify import Finding, verify
from spark_lance.table.versions.cleanup import CleanupPolicy, cleanup
from tests.cluster.standalone import eventually

__all__ = [
    "attempts",
    "attempts_of_first_task",
    "check_orphans_go",
    "check_whole",
    "ids",
    "orphans",
    "rows_of",
]

ALL_VERSIONS = CleanupPolicy(retain_versions=1 << 62)
WEEK = timedelta(days=7, hours=1)


def ids(path: str) -> list[int]:
    return sorted(spark_lance.dataset(path).to_table(columns=["id"]).column("id").to_pylist())


def orphans(path: str) -> set[str]:
    """The data files that no version names."""
    versions = [entry["version"] for entry in spark_lance.dataset(path).versions()]
    manifests = [spark_lance.dataset(path, version=version).manifest for version in versions]
    fragments = [fragment for manifest in manifests for fragment in manifest.fragments]
    return {file.name for file in (Path(path) / "data").iterdir()} - {
        file.path for fragment in fragments for file in fragment.files
    }


def settled_orphans(path: str) -> set[str]:
    """The same, once the attempts that Spark no longer wants have ended."""
    results = [orphans(path)]

    def quiet() -> bool:
        time.sleep(0.5)
        results.append(orphans(path))
        return results[-1] == results[-2]

    eventually("no more files appear", quiet)
    return results[-1]


def attempts(marks: Path, what: str) -> set[str]:
    """The attempts, "partition.attempt" or "partition.stage-attempt", that left a mark."""
    return {mark.name.removesuffix(f".{what}") for mark in marks.glob(f"*.{what}")}


def attempts_of_first_task(marks: Path) -> int:
    """How many attempts of the task with the trouble have got half-way, in the stage with the most."""
    first = [attempt for attempt in attempts(marks, "half") if attempt.startswith("0.")]
    return max(Counter(attempt.rpartition("-")[0] for attempt in first).values(), default=0)


def rows_of(dataset: Any) -> list[dict[str, Any]]:
    """The rows of a table, ours or pylance's, by their numbers."""
    rows: list[dict[str, Any]] = dataset.to_table().to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


def findings(path: str) -> tuple[Finding, ...]:
    """What `verify` has to say, orphans included."""
    table = spark_lance.dataset(path)
    return verify(table.snapshot).findings


def check_whole(path: str) -> None:
    """Versions have no gaps, all that they name is there, and pylance reads the same rows."""
    table = spark_lance.dataset(path)
    assert [entry["version"] for entry in table.versions()] == list(range(1, table.version + 1))
    assert [result for result in findings(path) if not result.message.startswith("no version names it")] == []
    theirs: Any = lance.dataset(path)
    assert [entry["version"] for entry in theirs.versions()] == list(range(1, table.version + 1))
    theirs.validate()
    assert rows_of(theirs) == rows_of(table)


def named(path: str) -> set[str]:
    """The files that versions name, and what else belongs to a table, by their paths below it."""
    results = {f"_versions/{HINT_NAME}"}
    for entry in spark_lance.dataset(path).versions():
        table = spark_lance.dataset(path, version=entry["version"])
        results.add(Path(table.manifest.path).relative_to(path).as_posix())
        results.add(f"_transactions/{table.manifest.message.transaction_file}")
        for fragment in table.manifest.fragments:
            results.update(f"data/{file.path}" for file in fragment.files)
            deletion = fragment.deletion_file
            name = f"_deletions/{fragment.id}-{deletion.read_version}-{deletion.id}"
            results.update({f"{name}.arrow", f"{name}.bin"} if fragment.HasField("deletion_file") else set())
    return results


def stored(path: str) -> set[str]:
    """All files below a table's root."""
    return {file.relative_to(path).as_posix() for file in Path(path).rglob("*") if file.is_file()}


def check_orphans_go(path: str) -> None:
    """Clean-up leaves files alone that a running job may need; told that none runs, it removes those only."""
    result = settled_orphans(path)
    check_whole(path)
    needed, before = named(path), ids(path)
    table = spark_lance.dataset(path)
    everything = stored(path)
    table.cleanup_old_versions()
    assert stored(path) == everything
    stats = table.cleanup_old_versions(delete_unverified=True)
    assert stats.data_files_removed == len(result)
    assert stored(path) & needed == everything & needed
    # What belongs to a commit only goes when it is a week old, even so.
    cleanup(table.table, table.manifest, ALL_VERSIONS, now=datetime.now(timezone.utc) + WEEK)
    assert stored(path) == everything & needed
    assert findings(path) == ()
    assert ids(path) == before
    check_whole(path)
