"""Checking tables: sound ones, whoever wrote them, have no damage; every kind of damage is named."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import FormatError
from spark_lance.proto import table_pb2
from spark_lance.table.maintenance.verify import Finding, Verification, verify
from tests.strategies import tables

Edit = Callable[[table_pb2.Manifest], None]
Forge = Callable[[Path, Edit], None]

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


def rows(start: int, count: int = 50) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"id": pa.array(numbers, pa.int64()), "t": [f"text {i}" for i in numbers]})


def checked(path: Path | str, **options: Any) -> Verification:
    ds = dataset(path, **options)
    return verify(ds.snapshot)


def levels(found: Verification, level: str) -> list[Finding]:
    return [finding for finding in found.findings if finding.level == level]


def rich(path: Path, *, stable: bool = True) -> LanceDataset:
    """A table with deletions, an added column, updated rows, an index, a tag and a branch."""
    for start in range(0, 200, 50):
        write_dataset(rows(start), path, mode="append", enable_stable_row_ids=stable)
    ds = dataset(path).delete("id % 7 = 3")
    ds = ds.add_columns({"twice": "id * 2"})
    ds = ds.update({"t": "'new'"}, where="id between 60 and 70").dataset
    theirs: Any = lance.dataset(str(path))
    theirs.create_scalar_index("id", "BTREE")
    dataset(path).tags.create("checked")
    branch = dataset(path).create_branch("dev")
    write_dataset(pa.table({"id": [1000]}), branch.uri, mode="append")
    return dataset(path)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_a_rich_table_is_sound(tmp_path: Path, stable: bool) -> None:
    ds = rich(tmp_path / "t", stable=stable)
    seen: list[tuple[int, int]] = []
    result = verify(ds.snapshot, lambda done, total: seen.append((done, total)))
    assert result.findings == ()
    assert not result.damaged
    assert (result.rows, result.versions, result.indices) == (ds.count_rows(), ds.version, 1)
    assert seen[-1] == (result.bytes, result.bytes)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    (note,) = checked(tmp_path / "t", version=("dev", None)).findings
    assert (note.level, note.message) == ("note", "1 of 6 fragments are not covered")
    assert not checked(tmp_path / "t", version=2).damaged


@pytest.mark.parametrize("writer", ["ours", "pylance"])
@settings(max_examples=4, phases=PHASES)
@given(data=st.data())
def test_any_table_is_sound(
    tmp_path_factory: pytest.TempPathFactory, writer: str, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("v") / "t"
    version = data.draw(st.sampled_from(["2.0", "2.1", "2.2"]))
    # Some nested tables make pylance panic when it writes them.
    table = data.draw(tables(version, max_rows=30, max_depth=3 if writer == "ours" else 0))
    write: Any = write_dataset if writer == "ours" else lance.write_dataset
    write(table, str(path), data_storage_version=version, enable_stable_row_ids=data.draw(st.booleans()))
    assert checked(path).findings == ()


def test_a_table_of_pylance_after_all_kinds_of_changes(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for start in range(0, 200, 50):
        theirs: Any = lance.write_dataset(rows(start), path, mode="append", enable_stable_row_ids=True)
    theirs.delete("id < 20")
    theirs.update({"t": "'x'"}, where="id > 150")
    theirs.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(180, 40))
    theirs.add_columns({"n": "id + 1"})
    theirs.create_scalar_index("t", "BITMAP")
    theirs.optimize.compact_files()
    theirs.create_branch("b")
    assert levels(checked(path), "damage") == []


def in_table(path: Path, pattern: str) -> Path:
    # Of manifests, the oldest version's is the last.
    return sorted(path.glob(pattern))[-1]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip(file: Path) -> None:
    """Damage the first page, which is at the beginning of a file."""
    data = bytearray(file.read_bytes())
    data[:64] = bytes(byte ^ 0xFF for byte in data[:64])
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("pattern", "spoil", "words"),
    [
        ("data/*.lance", Path.unlink, "does not exist"),
        ("data/*.lance", cut, "in the manifest"),
        ("_deletions/*", Path.unlink, "missing"),
        ("_deletions/*", cut, "deletion"),
        ("_indices/*", shutil.rmtree, "its files are gone"),
        ("_indices/*/*", Path.unlink, "gone"),
        ("_indices/*/*", cut, "in the manifest"),
        ("_versions/*.manifest", cut, "manifest"),
    ],
)
def test_damage_is_found(tmp_path: Path, pattern: str, spoil: Callable[[Path], object], words: str) -> None:
    path = tmp_path / "t"
    rich(path)
    spoil(in_table(path, pattern))
    result = checked(path)
    assert result.damaged
    assert any(words in finding.message or words in finding.where for finding in levels(result, "damage"))


def test_a_damaged_page_is_told_by_its_column(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = pa.table({"t": [f"text {i}" for i in range(5000)], "id": range(5000)})
    write_dataset(table, path)
    flip(in_table(path, "data/*.lance"))
    (finding,) = levels(checked(path), "damage")
    assert finding.where == "fragment 0, column t"


def test_rows_that_no_file_has_are_not_counted_through(tmp_path: Path, forge: Forge) -> None:
    write_dataset(rows(0), tmp_path / "t").add_columns(pa.schema([("n", pa.string())]))

    def billions(message: table_pb2.Manifest) -> None:
        message.fragments[0].physical_rows = 2**32 - 1

    forge(tmp_path / "t", billions)
    start = time.monotonic()
    damaged = {finding.where for finding in levels(checked(tmp_path / "t"), "damage")}
    assert damaged == {"fragment 0, column id", "fragment 0, column t"}
    assert time.monotonic() - start < 60


def test_negative_field_ids_are_refused(tmp_path: Path, forge: Forge) -> None:
    write_dataset(rows(0), tmp_path / "t")

    def negative(message: table_pb2.Manifest) -> None:
        message.fields[1].id = -5

    forge(tmp_path / "t", negative)
    with pytest.raises(FormatError, match="field 't' has a negative id"):
        dataset(tmp_path / "t").update({"t": "'x'"})


def test_tags_branches_and_orphans(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rich(path)
    (path / "data" / "left-over.lance").write_bytes(b"x" * 10)
    (finding,) = checked(path).findings
    assert (finding.level, finding.where) == ("note", "data/left-over.lance")
    shutil.rmtree(path / "tree" / "dev" / "_versions")
    dataset(path).cleanup_old_versions(retain_versions=1, error_if_tagged_old_versions=False)
    (path / "_refs" / "tags" / "checked.json").write_text(
        '{"branch": null, "version": 2, "manifestSize": 1}', encoding="utf-8"
    )
    where = {finding.where for finding in levels(checked(path), "damage")}
    assert where == {"tag checked", "branch dev"}


def test_row_ids_in_use_twice_or_not_yet_given(tmp_path: Path) -> None:
    ds = rich(tmp_path / "t")
    message = type(ds.manifest.message)()
    message.CopyFrom(ds.manifest.message)
    message.fragments[1].inline_row_ids = message.fragments[0].inline_row_ids
    message.next_row_id = 10
    changed = type(ds.manifest)(message, ds.manifest.index_section, ds.manifest.naming, ds.manifest.path)
    result = verify(ds.snapshot.at(changed))
    messages = [finding.message for finding in levels(result, "damage")]
    assert any("two rows have the same row id" in text for text in messages)
    assert any("10 is the next to be given" in text for text in messages)


def test_legacy_tables_are_read_but_not_searched_for_orphans(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    lance.write_dataset(rows(0), path, data_storage_version="legacy")
    result = checked(path)
    assert not result.damaged
    assert result.rows == 50
    assert [finding.where for finding in result.findings] == ["orphans"]


def test_checking_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rich(path)
    before = sorted(str(file) for file in path.rglob("*"))
    checked(path)
    assert sorted(str(file) for file in path.rglob("*")) == before
