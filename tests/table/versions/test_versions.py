"""Manifests that are known are what their files say, whatever was done; facts of fragments add up."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_lance
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.features import FragmentFacts
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import load_latest

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


def rows(start: int, count: int) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64()), "s": ["x"] * count})


def check_known(path: str) -> None:
    """The newest version as it is known is that of its file."""
    store, root = open_store(path)
    known = load_latest(TableRef(store, root))
    read = read_manifest(store, known.path, known.naming)
    assert known.message == read.message
    assert known.message.SerializeToString(deterministic=True) == read.message.SerializeToString(
        deterministic=True
    )
    assert (known.index_section, known.inline_transaction) == (read.index_section, read.inline_transaction)
    assert known.facts == FragmentFacts.of(read.message.fragments)


def change(draw: random.Random, path: str, count: int) -> None:
    dataset = spark_lance.dataset(path)
    what = draw.choice(
        ("append", "append", "append", "delete", "update", "compact", "column", "restore", "theirs")
    )
    if what == "append":
        spark_lance.write_dataset(rows(count * 100, draw.randint(1, 9)), path, mode="append")
    elif what == "delete":
        dataset.delete(f"id % 7 = {draw.randint(0, 6)}")
    elif what == "update":
        dataset.update({"s": "'y'"}, where=f"id % 5 = {draw.randint(0, 4)}")
    elif what == "compact":
        dataset.optimize.compact_files(target_rows_per_fragment=draw.randint(5, 50))
    elif what == "column":
        dataset.create_scalar_index("id", "BTREE", replace=True)
    elif what == "restore":
        spark_lance.dataset(path, version=draw.randint(1, dataset.version)).restore()
    else:
        lance.write_dataset(rows(count * 100, 3), path, mode="append")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stable", [False, True])
def test_what_is_known_is_what_the_file_says(tmp_path: Path, seed: int, *, stable: bool) -> None:
    draw = random.Random(seed)
    path = str(tmp_path / "t.lance")
    spark_lance.write_dataset(rows(0, 20), path, enable_stable_row_ids=stable)
    for count in range(1, 16):
        change(draw, path, count)
        check_known(path)
        assert lance.dataset(path).to_table().equals(spark_lance.dataset(path).to_table())


def test_a_table_in_the_place_of_another_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.lance"
    for start in (0, 100):
        shutil.rmtree(path, ignore_errors=True)
        spark_lance.write_dataset(rows(start, 5), str(path))
        spark_lance.write_dataset(rows(start + 5, 5), str(path), mode="append")
        assert spark_lance.dataset(str(path)).to_table()["id"].to_pylist() == list(range(start, start + 10))
    # The same number of bytes, and another content.
    (file,) = (path / "_versions").glob("*8446744073709551613.manifest")
    data = file.read_bytes()
    table = TableRef(*open_store(str(path)))
    name = load_latest(table).fragments[0].files[0].path.encode()
    file.write_bytes(data.replace(name, name[::-1]))
    assert load_latest(table).fragments[0].files[0].path.encode() == name[::-1]


def test_an_append_looks_at_new_fragments_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "t.lance")
    for start in range(20):
        spark_lance.write_dataset(rows(start, 1), path, mode="append" if start else "create")
    looked = []
    plain = FragmentFacts.of.__func__  # type: ignore[attr-defined]

    def of(cls: Any, fragments: Any) -> FragmentFacts:
        looked.append(len(fragments))
        return plain(cls, fragments)  # type: ignore[no-any-return]

    monkeypatch.setattr(FragmentFacts, "of", classmethod(of))
    spark_lance.write_dataset(rows(20, 1), path, mode="append")
    assert looked == [1]
    assert len(load_latest(TableRef(*open_store(path))).fragments) == 21


@st.composite
def fragments(draw: st.DrawFn) -> table_pb2.DataFragment:
    result = table_pb2.DataFragment(id=draw(st.integers(0, 9)))
    for _ in range(draw(st.integers(0, 2))):
        result.files.add(file_major_version=2, file_minor_version=draw(st.integers(0, 2)))
    result.physical_rows = draw(st.integers(0, 2))
    if draw(st.booleans()):
        result.deletion_file.num_deleted_rows = draw(st.integers(0, 1))
    if draw(st.booleans()):
        result.inline_row_ids = b"x"
    return result


@given(lists=st.lists(st.lists(fragments(), max_size=4), min_size=1, max_size=3))
def test_facts_add_up(lists: list[list[table_pb2.DataFragment]]) -> None:
    summed = FragmentFacts()
    for some in lists:
        summed = summed.and_then(FragmentFacts.of(some))
    assert summed == FragmentFacts.of([each for some in lists for each in some])
