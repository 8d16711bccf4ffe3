"""A version as a value: what it tells, how it travels, and that nothing else attaches pruners."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.index.pruners import index_pruners, indexed_snapshot
from spark_lance.table.reading.snapshot import Snapshot

PACKAGE = Path(spark_lance.__file__).parent


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    dataset = lance.write_dataset(pa.table({"a": range(100)}), tmp_path / "t", max_rows_per_file=40)
    dataset.create_scalar_index("a", "BTREE")
    dataset.delete("a in (3, 50, 51)")
    return spark_lance.dataset(tmp_path / "t").snapshot


def calls(path: Path, word: str) -> Iterator[ast.Call]:
    """Yield the calls in a module, if it has a word at all: parsing takes far longer than reading."""
    text = path.read_text()
    nodes = ast.walk(ast.parse(text)) if word in text else ()
    return (node for node in nodes if isinstance(node, ast.Call))


def test_only_snapshots_attach_pruners() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "table/reading/snapshot.py"]
    planning = [
        path for path in modules for call in calls(path, "Scan") if ast.unparse(call.func) == "Scan.plan"
    ]
    words = [(path, word) for path in modules for call in calls(path, "pruners") for word in call.keywords]
    # To leave them out is another matter.
    attaching = [path for path, word in words if word.arg == "pruners" and ast.unparse(word.value) != "()"]
    assert planning == attaching == []


def test_numbers_of_rows(snapshot: Snapshot) -> None:
    assert snapshot.live_rows() == 97
    assert [snapshot.live_rows(fragment) for fragment in snapshot.fragments] == [39, 38, 20]
    assert [snapshot.physical_rows(fragment) for fragment in snapshot.fragments] == [40, 40, 20]
    assert [snapshot.deletions(fragment).tolist() for fragment in snapshot.fragments] == [[3], [10, 11], []]


def test_a_copy_in_another_process_prunes_as_well(snapshot: Snapshot) -> None:
    snapshot.scan()
    copy: Snapshot = pickle.loads(pickle.dumps(snapshot))
    assert len(pickle.dumps(copy)) == len(pickle.dumps(snapshot))
    assert (copy.version, copy.pruner_factory) == (snapshot.version, index_pruners)
    assert len(copy.scan(["a"]).pruners) == 1


def test_a_reference_is_small_and_gives_the_same_version(snapshot: Snapshot) -> None:
    assert len(pickle.dumps(snapshot.ref())) < len(pickle.dumps(snapshot))
    again = snapshot.ref().load()
    assert again.manifest.message == snapshot.manifest.message
    assert again.pruner_factory is index_pruners


def test_another_version_keeps_the_pruners(snapshot: Snapshot) -> None:
    first = spark_lance.dataset(snapshot.store.uri(snapshot.root), version=1)
    assert len(snapshot.scan().pruners) == 1
    assert snapshot.at(first.manifest).version == 1
    assert snapshot.at(first.manifest).scan().pruners == ()
    assert indexed_snapshot(snapshot.table, first.manifest) == snapshot.at(first.manifest)
