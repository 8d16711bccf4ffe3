"""The option table: values, spellings, and refusals that say what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from spark_lance.errors import OptionError
from spark_lance.spark.options.option_fields import ALIASES, OPTIONS, java_option_names, options_that_choose
from spark_lance.spark.options.options import option_table, read_options, write_options

PATH = {"path": "/t"}


def test_defaults_come_from_the_table() -> None:
    read = read_options(PATH)
    write = write_options(PATH)
    for name, option in OPTIONS.items():
        if name != "path":
            assert getattr(read if option.used == "read" else write, name) == option.default, name
    assert read.storage == write.storage == {}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("version", "12", 12),
        ("versionasof", "12", 12),
        ("columns", "a, b ,c", ("a", "b", "c")),
        ("columns", '["a,b", "`c`", " d"]', ("a,b", "`c`", " d")),
        ("columns", "[]", ()),
        ("batch_size", "1000", 1000),
        ("batch-size", "1000", 1000),
        ("batch_bytes", "4m", 4 << 20),
        ("batch_bytes", "4 MiB", 4 << 20),
        ("insertedAfter", "0", 0),
        ("start-snapshot-id", "3", 3),
    ],
)
def test_values_of_read_options(name: str, text: str, value: Any) -> None:
    options = read_options({**PATH, name: text})
    assert getattr(options, ALIASES[name.lower()].name) == value


def test_values_of_write_options() -> None:
    given = {
        "MAX_ROW_PER_FILE": "10",
        "max_bytes_per_file": "1g",
        "data_storage_version": "2.1",
        "enable_stable_row_ids": "TRUE",
        "usermetadata": "nightly load",
        "a.b.arrow.fixed-size-list.size": "768",
        "snapshot-property.job-id": "7",
    }
    options = write_options({**PATH, **given})
    assert options.max_rows_per_file == 10
    assert options.max_bytes_per_file == 1 << 30
    assert options.data_storage_version == "2.1"
    assert options.enable_stable_row_ids is True
    assert options.commit_message == "nightly load"
    assert options.properties == {"job-id": "7"}
    assert options.column_settings == {"a.b": {"arrow.fixed-size-list.size": 768}}


def test_storage_options_pass_through() -> None:
    given = {
        "storage.anon": "true",
        "storage.client_kwargs": '{"region_name": "eu-1"}',
        "storage.key": "7",
        "endpoint_url": "http://x:9",
    }
    expected = {
        "anon": True,
        "client_kwargs": {"region_name": "eu-1"},
        "key": "7",
        "endpoint_url": "http://x:9",
    }
    assert read_options({**PATH, **given}).storage == expected
    assert write_options({**PATH, **given}).storage == expected


@pytest.mark.parametrize(
    ("path", "location"),
    [("file:/a/b", "file:///a/b"), ("file:///a", "file:///a"), ("s3a://b/k", "s3://b/k"), (" /a b", "/a b")],
)
def test_hadoop_s_spellings_of_locations(path: str, location: str) -> None:
    assert read_options({"path": path}).path == location


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"version": "0"}, "'version' must be a version number"),
        ({"version": "main"}, "'version' must be a version number"),
        ({"columns": "a,,b"}, "'columns' must be names"),
        ({"columns": "`a`"}, "JSON list"),
        ({"columns": "[1]"}, "'columns' must be names"),
        ({"columns": "[a"}, "'columns' must be names"),
        ({"columns": "a,b,a"}, "names a column twice: a"),
        ({"batch_size": "-1"}, "'batch_size' must be a number of rows"),
        ({"batch_bytes": "4 apples"}, "such as 8388608 or 8m"),
        ({"enable_stable_row_ids": "perhaps"}, "true or false"),
        ({"v.arrow.fixed-size-list.size": "0"}, "vector length"),
        ({"version": "1", "versionasof": "1"}, "given twice"),
        ({"start-snapshot-id": "one"}, "'insertedAfter' must be a version number"),
        ({"start-snapshot-id": "1", "version": "2"}, "cannot be combined with option 'version'"),
        ({"bathc_size": "1"}, "did you mean 'batch_size'"),
        ({"v.arrow.fixed-size-list.length": "3"}, "did you mean 'v.arrow.fixed-size-list.size'"),
        ({"partitionOverwriteMode": "sideways"}, "static or dynamic"),
        ({"snapshot-property.": "x"}, "choose another name, such as snapshot-property.job-id"),
        ({"snapshot-property.__lance_commit_message": "x"}, "choose another name"),
        ({"dataChange": "false"}, "not supported"),
        ({"check-ordering": "true"}, "writes match columns by name, and only insertInto by position"),
        ({"compression-codec": "snappy"}, "must be zstd, lz4, fsst or none"),
        ({"compression-level": "3"}, "name the column: <column>.lance.compression-level"),
        ({"delta.appendonly": "true"}, "'delta.appendOnly' is a table property"),
        ({"distribution-mode": "hash"}, "SET TBLPROPERTIES ('write.distribution-mode' = 'hash')"),
        ({"failOnDataLoss": "false"}, "leave it out"),
        ({"allowSourceColumnDrop": "always"}, "start the stream again"),
        ({"isolation-level": "serializable"}, "only changes of the same rows are conflicts"),
        ({"validate-from-snapshot-id": "3"}, "only changes of the same rows are conflicts"),
        ({"write-format": "avro"}, "data files are Lance files"),
        ({"anything": "1"}, "unknown option 'anything': leave it out"),
        ({"storage.client_kwargs": "{"}, "starts like JSON"),
        ({"paths": '["/a", "/b"]'}, "takes one path"),
    ],
)
def test_refusals(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({**PATH, **given})
    assert message in str(caught.value)


def test_a_missing_path_tells_about_catalog_tables() -> None:
    for parse in (read_options, write_options):
        with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
            parse({})


def test_an_old_version_cannot_be_written_to() -> None:
    with pytest.raises(OptionError, match="for reading"):
        write_options({**PATH, "version": "3"})


def test_what_spark_adds_is_ignored() -> None:
    added = {"owner": "me", "location": "file:/t", "provider": "lance", "mergeschema": "false"}
    assert read_options({**PATH, **added}) == read_options(PATH)


def test_options_that_tune_other_formats_are_ignored() -> None:
    tuning = {
        "check-nullability": "false",
        "check-ordering": "false",
        "compression-strategy": "speed",
        "distribution-mode": "none",
        "failOnDataLoss": "true",
        "file-open-cost": "4",
        "lookback": "5",
        "vectorization-enabled": "true",
        "write-format": "lance",
    }
    assert read_options({**PATH, **tuning}) == read_options(PATH)
    assert write_options({**PATH, **tuning}) == write_options(PATH)
    assert write_options({**PATH, "compression-codec": "zstd"}).compression == "zstd"


def test_the_table_for_the_documentation_has_every_option() -> None:
    groups = option_table()
    rows = [row for group in groups.values() for row in group]
    assert {name for name, _, _ in rows} >= set(OPTIONS)
    assert all(doc for _, _, doc in rows)
    streams = {name for name, _, _ in groups["Change feed and streams from a table"]}
    assert {"readChangeFeed", "startingVersion", "ignoreDeletes", "maxRowsPerTrigger"} <= streams
    assert "version" in {name for name, _, _ in groups["Reads"]}


def test_lists_are_derived_from_the_declarations() -> None:
    assert options_that_choose("version") == ("version", "tag", "asof")
    assert options_that_choose("search") == ("nearest", "full_text_query", "hybrid_search")
    assert {name for option in OPTIONS.values() for name in option.excludes} <= set(OPTIONS)
    assert java_option_names()["timeTravel"] == ["versionasof", "timestampasof"]
    names = java_option_names()["time"]
    assert names[:3] == ["asof", "timestampasof", "as-of-timestamp"]
    assert names[3:] == ["startingtimestamp", "stream-from-timestamp", "endingtimestamp"]
    read = read_options({**PATH, "with_row_versions": "true", "with_row_id": "true"})
    assert read.system_columns == ("_rowid", "_row_created_at_version", "_row_last_updated_at_version")


@pytest.mark.parametrize("name", ["fresh", "hybrid_search", "filter", "asof", "endingVersion"])
def test_rows_of_views_of_other_rows_are_not_changed(name: str) -> None:
    from spark_lance.spark.sql.row_level import _ROW_SELECTING_OPTIONS

    assert name in _ROW_SELECTING_OPTIONS


@pytest.mark.parametrize(
    ("parse", "mistake", "advice", "remedies"),
    [
        (
            read_options,
            {"version": "1", "tag": "x", "branch": "b"},
            "give one of the options version, tag and asof, and no branch with a tag",
            [{"version": "1", "branch": "b"}, {"tag": "x"}, {"asof": "2026-01-01 00:00:00+00:00"}],
        ),
        (
            read_options,
            {"asof": "2026-01-01"},
            "write it with its zone, such as 2026-01-01 00:00:00+00:00, or set option 'timeZone'",
            [{"asof": "2026-01-01 00:00:00+00:00"}, {"asof": "2026-01-01", "timeZone": "Europe/Oslo"}],
        ),
        (
            write_options,
            {"snapshot-property.__lance_x": "1"},
            "such as snapshot-property.job-id, or use option 'commit_message'",
            [{"snapshot-property.job-id": "1"}, {"commit_message": "1"}],
        ),
        (
            write_options,
            {"txnAppId": "a"},
            "'txnAppId' and 'txnVersion' must be set together",
            [{"txnAppId": "a", "txnVersion": "1"}, {}],
        ),
    ],
)
def test_advice_on_options_can_be_followed(
    parse: Callable[[dict[str, str]], object],
    mistake: dict[str, str],
    advice: str,
    remedies: list[dict[str, str]],
) -> None:
    with pytest.raises(OptionError, match=re.escape(advice)):
        parse({**PATH, **mistake})
    for remedy in remedies:
        parse({**PATH, **remedy})
