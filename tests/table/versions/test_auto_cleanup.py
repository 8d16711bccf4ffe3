"""Clean-up after commits, by the table's config: when, of what, and that it undoes no commit."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import dataset, write_dataset
from spark_lance.errors import OptionError
from spark_lance.table.versions.auto_cleanup import auto_cleanup_config, parse_duration

INTERVAL = "lance.auto_cleanup.interval"
OLDER_THAN = "lance.auto_cleanup.older_than"
RETAIN = "lance.auto_cleanup.retain_versions"


def rows(value: int) -> pa.Table:
    return pa.table({"a": pa.array([value], pa.int64())})


def versions(path: Path) -> list[int]:
    return [version["version"] for version in lance.dataset(str(path)).versions()]


def history(path: Path, config: dict[str, str], write: Any) -> list[list[int]]:
    """Return the versions that exist after each of some appends to a table of this config."""
    lance.write_dataset(rows(0), path)
    lance.dataset(path).update_config({**config})
    seen = []
    for value in range(1, 9):
        write(rows(value), path, mode="append")
        seen.append(versions(path))
    return seen


@pytest.mark.parametrize(
    "config",
    [
        {INTERVAL: "3", OLDER_THAN: "0s"},
        {INTERVAL: "1", OLDER_THAN: "0s"},
        {INTERVAL: "4", RETAIN: "3"},
        {INTERVAL: "3", OLDER_THAN: "0s", RETAIN: "4"},
        {INTERVAL: "3", OLDER_THAN: "1day"},
    ],
    ids=str,
)
def test_versions_go_when_pylance_lets_them_go(tmp_path: Path, config: dict[str, str]) -> None:
    expected = history(tmp_path / "theirs", config, lance.write_dataset)
    assert history(tmp_path / "ours", config, write_dataset) == expected
    assert dataset(tmp_path / "ours").count_rows() == 9


def test_taking_turns(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(rows(0), path, auto_cleanup_options={"interval": 2, "older_than_seconds": 0})
    for value in range(1, 10):
        (write_dataset if value % 2 else lance.write_dataset)(rows(value), path, mode="append")
        latest = value + 1
        assert versions(path) == [v for v in (latest - 2, latest - 1, latest) if v >= latest // 2 * 2 - 1]
    assert sorted(lance.dataset(path).to_table()["a"].to_pylist()) == list(range(10))


def test_tagged_versions_stay(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(rows(0), path, auto_cleanup_options={"interval": 3, "older_than_seconds": 0})
    dataset(path).tags.create("first", 1)
    for value in range(1, 6):
        write_dataset(rows(value), path, "append")
    assert versions(path) == [1, 5, 6]


def test_without_an_age_versions_go_after_two_weeks(tmp_path: Path) -> None:
    assert history(tmp_path / "t", {INTERVAL: "1"}, write_dataset)[-1] == list(range(1, 11))


@pytest.mark.parametrize(
    "config", [{INTERVAL: "x"}, {INTERVAL: "0"}, {INTERVAL: "1", OLDER_THAN: "1 fortnight"}]
)
def test_a_failure_is_only_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, config: dict[str, str]
) -> None:
    with caplog.at_level(logging.WARNING, "spark_lance"):
        seen = history(tmp_path / "t", config, write_dataset)
    assert seen[-1] == list(range(1, 11))
    assert "not cleaned up" in caplog.text


def test_an_unreadable_old_version_does_not_undo_a_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t"
    write_dataset(rows(0), path, auto_cleanup_options={"interval": 3, "retain_versions": 1})
    write_dataset(rows(1), path, "append")
    (path / "_versions" / f"{2**64 - 1 - 1:020d}.manifest").write_bytes(b"no manifest")
    assert write_dataset(rows(2), path, "append").version == 3
    assert "not cleaned up" in caplog.text


def test_options_of_a_new_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    ours = write_dataset(rows(0), path, auto_cleanup_options={"interval": 7, "older_than_seconds": 90})
    assert ours.config() == {INTERVAL: "7", OLDER_THAN: "90s"}
    assert ours.manifest.message.writer_feature_flags == 8
    assert lance.dataset(path).config() == ours.config()
    theirs = lance.write_dataset(
        rows(0), tmp_path / "theirs", auto_cleanup_options={"interval": 7, "older_than_seconds": 90}
    )
    assert {k: v if k == INTERVAL else parse_duration(v) for k, v in theirs.config().items()} == {
        INTERVAL: "7",
        OLDER_THAN: timedelta(seconds=90),
    }
    # A table that exists keeps its config.
    again = write_dataset(rows(1), path, "append", auto_cleanup_options={"interval": 1, "retain_versions": 1})
    assert again.config() == ours.config()


@pytest.mark.parametrize(
    "options", [{}, {"interval": 3}, {"interval": 0, "retain_versions": 1}, {"every": 3}]
)
def test_bad_options(options: dict[str, int]) -> None:
    with pytest.raises(OptionError):
        auto_cleanup_config(options)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("14days", 14 * 86_400),
        ("1h 30min", 5400),
        ("2weeks 1d", 15 * 86_400),
        ("1 day", 86_400),
        ("1day1h", 90_000),
        ("1M", 30.44 * 86_400),
        ("1m", 60),
        ("250ms", 0.25),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", " ", "5", "days", "-1day", "1 fortnight", "1day x", f"{10**12}years"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OptionError):
        parse_duration(text)
