"""Tables whose files are links, as DVC and git-annex leave them: read, copied and cleaned up like others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import spark_lance


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A table of two versions and an index; each of its files is a link into another folder."""
    place, store = tmp_path / "t", tmp_path / "store"
    dataset = spark_lance.write_dataset(pa.table({"id": range(100)}), str(place))
    dataset.create_scalar_index("id", "BTREE")
    store.mkdir()
    for number, file in enumerate([path for path in place.rglob("*") if path.is_file()]):
        file.rename(store / str(number))
        file.symlink_to(store / str(number))
    return place


def test_copies_have_all_files(linked: Path, tmp_path: Path) -> None:
    copy = spark_lance.dataset(str(linked)).deep_clone(str(tmp_path / "copy"))
    assert not any(path.is_symlink() for path in (tmp_path / "copy").rglob("*"))
    assert copy.to_table(filter="id = 5")["id"].to_pylist() == [5]
    theirs = lance.dataset(str(tmp_path / "copy"))
    assert theirs.to_table(filter="id = 5")["id"].to_pylist() == [5]
    assert [index.name for index in theirs.describe_indices()] == ["id_idx"]


def test_clean_ups_take_links_and_leave_what_they_lead_to(linked: Path, tmp_path: Path) -> None:
    dataset = spark_lance.dataset(str(linked)).delete("id >= 0")
    dataset = spark_lance.write_dataset(pa.table({"id": [7]}), dataset, mode="overwrite")
    before = sorted(path.name for path in (tmp_path / "store").iterdir())
    stats = dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert stats.old_versions == 3
    assert not any(path.is_symlink() for path in (linked / "data").iterdir())
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == before
    assert lance.dataset(str(linked)).to_table().to_pydict() == {"id": [7]}


def test_what_directories_link_to_stays(tmp_path: Path) -> None:
    other = spark_lance.write_dataset(pa.table({"id": [1]}), str(tmp_path / "other"))
    dataset = spark_lance.write_dataset(pa.table({"id": [2]}), str(tmp_path / "t"))
    (tmp_path / "t" / "data" / "more").symlink_to(tmp_path / "other" / "data")
    dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert other.to_table().to_pydict() == {"id": [1]}
