"""Finding versions: names, hints, detached versions, missing ones."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import FormatError, TableNotFoundError, VersionNotFoundError
from spark_lance.io.local import LocalStore
from spark_lance.io.store import open_store
from spark_lance.table.format.paths import ManifestNaming, newest_manifest_name
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.retention import MAX_REF_AGE_MS, drop_expired_refs, set_retention
from spark_lance.table.versions.versions import (
    find_version,
    latest_version,
    list_versions,
    load_latest,
    load_version,
    write_hint,
)
from tests.wrapped_store import WrappedStore

ROWS = pa.table({"a": [1, 2, 3]})


@pytest.fixture(params=[True, False], ids=["V2", "V1"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "t"
    for _ in range(11):
        lance.write_dataset(ROWS, path, mode="append", enable_v2_manifest_paths=request.param)
    return path


def test_versions_are_listed_in_order(table: Path) -> None:
    table_ref = TableRef(*open_store(table))
    versions = list_versions(table_ref)
    assert [file.version for file in versions] == list(range(1, 12))
    assert latest_version(table_ref) == versions[-1]
    assert find_version(table_ref, 4) == versions[3]
    assert load_version(table_ref, 4).version == 4
    assert load_latest(table_ref).version == 11


@pytest.mark.parametrize("hint", [b"", b"{", b'{"version":2}', b'{"version":99}', b"\xff\xfe", None])
def test_hints_are_never_trusted(table: Path, hint: bytes | None) -> None:
    file = table / "_versions" / "latest_version_hint.json"
    if hint is None:
        file.unlink()
    else:
        file.write_bytes(hint)
    assert load_latest(TableRef(*open_store(table))).version == 11


def test_detached_versions_are_no_history(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    fragments = lance.fragment.write_fragments(ROWS, str(path))
    operation = lance.LanceOperation.Append(fragments)
    lance.LanceDataset.commit(str(path), operation, read_version=1, detached=True)
    assert list((path / "_versions").glob("d*.manifest"))
    assert load_latest(TableRef(*open_store(path))).version == 1


def test_files_in_the_making_are_no_versions(table: Path) -> None:
    versions = table / "_versions"
    for name in (
        "99.manifest#1",
        ".tmpAbCdEf",
        "99.manifest-0b3f8d3c-3f5c-4c0e-9a52-0a52d1e1a111",
        "readme.txt",
    ):
        (versions / name).write_bytes(b"junk")
    assert load_latest(TableRef(*open_store(table))).version == 11


def test_two_naming_schemes_are_refused_but_versions_still_open(table: Path) -> None:
    table_ref = TableRef(*open_store(table))
    naming = list_versions(table_ref)[0].naming
    other = ManifestNaming.V1 if naming is ManifestNaming.V2 else ManifestNaming.V2
    names = table / "_versions"
    (names / naming.file_name(3)).rename(names / other.file_name(3))
    with pytest.raises(FormatError, match="V1 and as V2"):
        load_latest(table_ref)
    with pytest.raises(ValueError, match="multiple manifest naming schemes"):
        lance.dataset(str(table))
    assert load_version(table_ref, 3).version == 3
    assert load_version(table_ref, 4).version == 4


@pytest.mark.parametrize("version", [0, -1, 12, 2**63, 2**64])
def test_a_missing_version_names_those_that_exist(table: Path, version: int) -> None:
    with pytest.raises(VersionNotFoundError, match="1 to 11"):
        load_version(TableRef(*open_store(table)), version)


def test_the_list_of_versions_in_the_message_is_short(table: Path) -> None:
    table_ref = TableRef(*open_store(table))
    for version in (2, 5):
        Path(find_version(table_ref, version).path).unlink()
    with pytest.raises(VersionNotFoundError, match=r"7, 8, 9, 10, 11 and 4 older ones from 1 on"):
        load_version(table_ref, 5)


def test_no_table(tmp_path: Path) -> None:
    (tmp_path / "empty" / "_versions").mkdir(parents=True)
    for place in (tmp_path / "missing", tmp_path / "empty", tmp_path):
        store, root = open_store(place)
        assert list_versions(TableRef(store, root)) == []
        with pytest.raises(TableNotFoundError, match=str(place)):
            load_latest(TableRef(store, root))
        with pytest.raises(TableNotFoundError, match=str(place)):
            load_version(TableRef(store, root), 1)


def test_a_latest_version_that_is_cleaned_up_meanwhile(table: Path) -> None:
    store, root = open_store(table)
    real = [file.path.rpartition("/")[2] for file in list_versions(TableRef(store, root))]

    class Stale(WrappedStore):
        calls = 0

        def list(self, directory: str) -> list[str]:
            Stale.calls += 1
            # A listing that still shows a version which is gone by the time it is read.
            ghost = (
                ManifestNaming.V1.file_name(12)
                if real[0] == "1.manifest"
                else ManifestNaming.V2.file_name(12)
            )
            return [*real, ghost] if Stale.calls == 1 else real

    assert load_latest(TableRef(Stale.around(LocalStore()), root)).version == 11


def test_hints_are_written_for_local_tables_only(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    table = TableRef(*open_store(path))
    write_hint(table, 7)
    assert (path / "_versions" / "latest_version_hint.json").read_text() == '{"version":7}'
    assert not [name for name in (path / "_versions").iterdir() if name.name.startswith(".tmp")]
    memory, place = open_store("memory://hints")
    write_hint(TableRef(memory, place), 7)
    assert memory.list(f"{place}/_versions") == []


def test_a_hint_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    shutil.rmtree(path / "_versions")
    (path / "_versions").write_text("a file where the directory should be")
    table = TableRef(*open_store(path))
    write_hint(table, 7)


def test_the_newest_name_is_found_without_parsing_all() -> None:
    names = [ManifestNaming.V2.file_name(version) for version in (3, 12, 7)]
    assert newest_manifest_name(names) == names[1]
    strays = ["latest_version_hint.json", f"{names[1]}#1", ".tmp12", "d18446744073709551614.manifest"]
    assert newest_manifest_name([*strays, *names, "d9223372036854775809.manifest"]) == names[1]
    assert newest_manifest_name([*names, "3.manifest"]) is None
    assert newest_manifest_name(strays) is None


def test_a_hint_is_written_in_place(tmp_path: Path) -> None:
    table = TableRef(*open_store(tmp_path))
    (tmp_path / "_versions").mkdir()
    hint = tmp_path / "_versions" / "latest_version_hint.json"
    for version in (9, 1000, 12):
        write_hint(table, version)
        assert hint.read_text() == f'{{"version":{version}}}'
    assert [path.name for path in hint.parent.iterdir()] == [hint.name]


def test_clean_ups_drop_refs_that_are_older_than_they_are_kept_for(tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t")
    main = dataset.main_line
    for name in ("short", "long", "plain"):
        dataset.tags.create(f"{name}_tag", 1)
        dataset.create_branch(f"{name}_branch")
    day = 24 * 3600 * 1000
    for name, days in (("short", 2), ("long", 20)):
        for kind in ("tag", "branch"):
            set_retention(main, kind, f"{name}_{kind}", {MAX_REF_AGE_MS: days * day})
    later = datetime.now(timezone.utc) + timedelta(days=5)
    assert drop_expired_refs(main) == []
    assert drop_expired_refs(main, now=later, dry_run=True) == ["short_tag", "short_branch"]
    assert drop_expired_refs(main, now=later) == ["short_tag", "short_branch"]
    assert sorted(dataset.tags.list()) == ["long_tag", "plain_tag"]
    assert sorted(dataset.branches.list()) == ["long_branch", "plain_branch"]
    assert drop_expired_refs(main, 3 * day, later) == ["plain_tag", "plain_branch"]


def test_clean_ups_drop_nothing_if_a_branch_is_damaged(tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t")
    main = dataset.main_line
    dataset.tags.create("old", 1)
    set_retention(main, "tag", "old", {MAX_REF_AGE_MS: 1})
    dataset.create_branch("side")
    (file,) = (tmp_path / "t" / "_refs" / "branches").glob("side*")
    file.write_text("{")
    later = datetime.now(timezone.utc) + timedelta(days=5)
    with pytest.raises(FormatError):
        drop_expired_refs(main, now=later)
    assert list(dataset.tags.list()) == ["old"]
