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
from spark_lance.io.progress import reporting
from spark_lance.table.commits import commit as commit_module
from spark_lance.table.versions.ages import LONGEST, age_of_hours, parse_duration
from spark_lance.table.versions.cleanup import auto_cleanup_config

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


@pytest.mark.parametrize("name", ["write_hint", "clean_up_after_commit", "remember"])
def test_no_failure_after_a_commit_is_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "t"
    write_dataset(rows(0), path)
    files = set((path / "data").iterdir())

    def fails(*arguments: Any) -> None:
        raise ZeroDivisionError("of a driver")

    monkeypatch.setattr(commit_module, name, fails)
    assert write_dataset(rows(1), path, mode="append").version == 2
    assert "version 2 of" in caplog.text
    assert "ZeroDivisionError: of a driver" in caplog.text
    dataset(path).delete("a = 0")
    assert files < set((path / "data").iterdir())
    assert lance.dataset(path).to_table()["a"].to_pylist() == [1]


def test_a_listener_of_progress_does_not_undo_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(rows(0), path, auto_cleanup_options={"interval": 1, "older_than_seconds": 0})
    write_dataset(rows(1), path, "append")

    def fails(*arguments: Any) -> None:
        raise KeyError("of a listener")

    with reporting(fails):
        assert write_dataset(rows(2), path, "append").version == 3
    assert dataset(path).count_rows() == 3


EXTREME_AGES = ["1000000days", "999999999999999999999weeks", f"{'9' * 5000}years", f"{10**12}years"]


@pytest.mark.parametrize("age", [*EXTREME_AGES, "-5days", "nan", "1e9days", "1.5days", ""])
def test_odd_ages_neither_undo_a_commit_nor_delete_versions(tmp_path: Path, age: str) -> None:
    assert history(tmp_path / "t", {INTERVAL: "1", OLDER_THAN: age}, write_dataset)[-1] == list(range(1, 11))


@pytest.mark.parametrize("name", [INTERVAL, RETAIN])
@pytest.mark.parametrize("number", ["9" * 5000, "-1", "1.0", "nan", " 1", "٣"])
def test_odd_numbers_neither_undo_a_commit_nor_delete_versions(
    tmp_path: Path, name: str, number: str
) -> None:
    config = {INTERVAL: "1", RETAIN: "100", name: number}
    assert history(tmp_path / "t", config, write_dataset)[-1] == list(range(1, 11))


def test_extreme_ages_of_a_clean_up_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for value in range(4):
        write_dataset(rows(value), path, "append")
    assert dataset(path).cleanup_old_versions(timedelta.max).old_versions == 0
    assert dataset(path).cleanup_old_versions(timedelta.min).old_versions == 3
    assert age_of_hours(float("inf"), "age") == age_of_hours(1e300, "age") == LONGEST
    for hours in (-1.0, float("nan"), float("-inf")):
        with pytest.raises(OptionError, match="age must be 0 or more hours"):
            age_of_hours(hours, "age")


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
    "options",
    [
        {},
        {"interval": 3},
        {"interval": 0, "retain_versions": 1},
        {"every": 3},
        {"interval": 3, "older_than_seconds": -1},
        {"interval": 3, "older_than_seconds": float("nan")},
        {"interval": 1.5, "retain_versions": 1},
        {"interval": True, "retain_versions": 1},
    ],
)
def test_bad_options(options: dict[str, Any]) -> None:
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


@pytest.mark.parametrize("text", [*EXTREME_AGES[1:], "600000000days 600000000days"])
def test_long_durations_are_cut(text: str) -> None:
    assert parse_duration(text) == LONGEST


@pytest.mark.parametrize(
    "text", ["", " ", "5", "days", "-1day", "1 fortnight", "1day x", "nan", "1.5days", "1e9days"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(OptionError):
        parse_duration(text)
