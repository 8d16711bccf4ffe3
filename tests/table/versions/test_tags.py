"""Tags: made here and read by pylance, and the other way round."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.errors import (
    BranchNotFoundError,
    FormatError,
    OptionError,
    TagExistsError,
    TagNotFoundError,
    VersionNotFoundError,
)

ROWS = pa.table({"a": pa.array(range(3), pa.int64())})


@pytest.fixture(params=[True, False], ids=["V2", "V1"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "t"
    for _ in range(4):
        lance.write_dataset(ROWS, path, mode="append", enable_v2_manifest_paths=request.param)
    return path


def theirs(path: Path, version: int | str | None = None) -> Any:
    """Open a table with pylance."""
    return lance.dataset(str(path), version=version)


def test_pylance_reads_our_tags(table: Path) -> None:
    ours = spark_lance.dataset(table, 2)
    ours.tags.create("here")
    ours.tags.create("first", 1)
    ours.tags.create("Same-as_here.2", "here")
    assert theirs(table).tags.list() == spark_lance.dataset(table).tags.list()
    assert list(ours.tags.list()) == ["Same-as_here.2", "first", "here"]
    assert {name: tag["version"] for name, tag in ours.tags.list().items()} == {
        "Same-as_here.2": 2,
        "first": 1,
        "here": 2,
    }
    for name, version in (("here", 2), ("first", 1), ("Same-as_here.2", 2)):
        assert theirs(table).tags.get_version(name) == ours.tags.get_version(name) == version
        assert theirs(table, name).version == spark_lance.dataset(table, version=name).version == version
        assert theirs(table, name).count_rows() == ours.checkout_version(name).count_rows() == 3 * version
    assert spark_lance.dataset(table).version == 4


def test_our_files_are_what_pylance_writes(table: Path) -> None:
    theirs(table).tags.create("theirs", 3)
    spark_lance.dataset(table).tags.create("ours", 3)
    texts = [(table / "_refs" / "tags" / f"{name}.json").read_text() for name in ("theirs", "ours")]
    contents = [json.loads(text) for text in texts]
    assert list(contents[0]) == list(contents[1])
    for content in contents:
        for key in ("createdAt", "updatedAt"):
            assert len(content.pop(key)) == len("2026-11-21T07:45:46.151455963Z")
    assert contents[0] == contents[1]
    assert texts[0].count("\n") == texts[1].count("\n")


def test_tags_of_pylance_are_read_moved_and_deleted(table: Path) -> None:
    theirs(table).tags.create("x", 1)
    theirs(table).tags.replace_metadata("x", {"why": "because"})
    dataset = spark_lance.dataset(table, "x")
    assert dataset.version == 1
    before = dataset.tags.list()["x"]
    dataset.tags.update("x", 3)
    after = theirs(table).tags.list()["x"]
    assert after == dataset.tags.list()["x"]
    assert after["version"] == 3
    assert after["created_at"] == before["created_at"]
    assert after["updated_at"] > before["updated_at"]
    assert after["metadata"] == {"why": "because"}
    assert theirs(table, "x").version == 3
    dataset.tags.delete("x")
    assert theirs(table).tags.list() == dataset.tags.list() == {}
    with pytest.raises(TagNotFoundError):
        spark_lance.dataset(table, "x")


def test_a_tagged_version_can_be_restored(table: Path) -> None:
    dataset = spark_lance.dataset(table)
    dataset.tags.create("good", 1)
    dataset.delete(pc.field("a") >= 0)
    assert spark_lance.dataset(table, "good").restore().count_rows() == 3
    assert theirs(table).count_rows() == 3


def test_what_cannot_be(table: Path) -> None:
    tags = spark_lance.dataset(table).tags
    tags.create("x", 1)
    with pytest.raises(TagExistsError, match="x"):
        tags.create("x", 2)
    with pytest.raises(TagNotFoundError, match="y"):
        tags.update("y", 1)
    with pytest.raises(TagNotFoundError, match="y"):
        tags.delete("y")
    with pytest.raises(TagNotFoundError, match="y"):
        tags.create("z", "y")
    with pytest.raises(VersionNotFoundError, match="99"):
        tags.create("y", 99)
    with pytest.raises(VersionNotFoundError, match="99"):
        tags.update("x", 99)
    with pytest.raises(FileExistsError):
        tags.create("x", 1)
    with pytest.raises(LookupError):
        spark_lance.dataset(table, "y")
    assert list(tags.list()) == ["x"]
    assert tags.get_version("x") == 1


@pytest.mark.parametrize(
    "name", ["", ".a", "a.", "a..b", "a.lock", "a b", "a/b", "a\\b", "%41", "\u00e9", "a\n"]
)
def test_names_that_pylance_cannot_use_either(table: Path, name: str) -> None:
    with pytest.raises(OptionError, match="cannot be a tag"):
        spark_lance.dataset(table).tags.create(name, 1)
    assert not (table / "_refs").exists()
    if name.isascii():
        with pytest.raises(OSError, match="Ref"):
            theirs(table).tags.create(name, 1)


def test_tags_of_earlier_writers_and_of_branches(table: Path) -> None:
    directory = table / "_refs" / "tags"
    directory.mkdir(parents=True)
    (directory / "old.json").write_text(
        '{"version": 2, "manifestSize": 3, "createdAt": "2026-01-31T12:00:00Z"}'
    )
    (directory / "dev.json").write_text('{"branch": "dev", "version": 2, "manifestSize": 3}')
    (directory / ".tmpabc").write_text("{")
    dataset = spark_lance.dataset(table, "old")
    assert dataset.version == 2
    tags = dataset.tags.list()
    assert tags == theirs(table).tags.list()
    (directory / ".hidden.json").write_text("{")
    (directory / "%C3%A9.json").write_text("{")
    assert dataset.tags.list() == tags
    assert sorted(tags) == ["dev", "old"]
    assert tags["old"]["created_at"] == datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    assert tags["old"]["updated_at"] is None
    assert tags["dev"]["branch"] == "dev"
    with pytest.raises(BranchNotFoundError, match="dev"):
        spark_lance.dataset(table, "dev")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b"null",
        b"[" * 100_000,
        b"{}",
        b'{"version": 0}',
        b'{"version": -1}',
        b'{"version": "1"}',
        b'{"version": 1.5}',
        b'{"version": true}',
        b'{"version": 18446744073709551616}',
        b'{"version": 1, "branch": 3}',
        b'{"version": 1, "metadata": []}',
        b'{"version": 1, "manifestSize": "3"}',
        b'{"version": 1, "createdAt": "yesterday"}',
        b'{"version": 1, "createdAt": "2026-13-31T12:00:00Z"}',
    ],
)
def test_damaged_tags(table: Path, content: bytes) -> None:
    tags = spark_lance.dataset(table).tags
    tags.create("x", 1)
    file = table / "_refs" / "tags" / "x.json"
    file.write_bytes(content)
    with pytest.raises(FormatError, match=r"x\.json"):
        tags.list()
    tags.delete("x")
    assert tags.list() == {}


def test_a_tag_of_a_version_that_is_gone(table: Path) -> None:
    tags = spark_lance.dataset(table).tags
    tags.create("x", 1)
    min((table / "_versions").glob("*.manifest"), key=lambda file: _version(file.name)).unlink()
    with pytest.raises(VersionNotFoundError, match="version 1"):
        spark_lance.dataset(table, "x")
    assert tags.list()["x"]["version"] == 1


def _version(name: str) -> int:
    number = int(name.split(".")[0])
    return 2**64 - 1 - number if number > 2**63 else number


def test_tags_in_memory() -> None:
    dataset = spark_lance.write_dataset(ROWS, "memory://tagged")
    assert dataset.tags.list() == {}
    dataset.tags.create("x")
    with pytest.raises(TagExistsError):
        dataset.tags.create("x")
    assert spark_lance.dataset("memory://tagged", "x").version == 1
    dataset.tags.delete("x")
    assert dataset.tags.list() == {}
