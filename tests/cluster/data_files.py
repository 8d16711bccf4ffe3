"""What is in a table's folder: rows, the files of its newest version, and those that no version names."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import spark_lance
from tests.cluster.standalone import eventually

__all__ = ["attempts", "attempts_of_first_task", "check_orphans_go", "ids", "orphans"]


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
    found = [orphans(path)]

    def quiet() -> bool:
        time.sleep(0.5)
        found.append(orphans(path))
        return found[-1] == found[-2]

    eventually("no more files appear", quiet)
    return found[-1]


def attempts(marks: Path, what: str) -> set[str]:
    """The attempts, "partition.attempt" or "partition.stage-attempt", that left a mark."""
    return {mark.name.removesuffix(f".{what}") for mark in marks.glob(f"*.{what}")}


def attempts_of_first_task(marks: Path) -> int:
    """How many attempts of the task with the trouble have got half-way, in the stage with the most."""
    first = [attempt for attempt in attempts(marks, "half") if attempt.startswith("0.")]
    return max(Counter(attempt.rpartition("-")[0] for attempt in first).values(), default=0)


def check_orphans_go(path: str) -> None:
    """Clean-up leaves files alone that a running job may need, and removes them when told that none runs."""
    before = ids(path)
    found = settled_orphans(path)
    table = spark_lance.dataset(path)
    table.cleanup_old_versions()
    assert orphans(path) == found
    stats = table.cleanup_old_versions(delete_unverified=True)
    assert stats.data_files_removed == len(found)
    assert orphans(path) == set()
    assert ids(path) == before
