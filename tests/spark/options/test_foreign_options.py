"""Options that are not ours, misspelt ones, options that exclude each other, and any text at all."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_lance.errors import OptionError
from spark_lance.spark.options.foreign_options import FOREIGN, STORAGE_NAMES
from spark_lance.spark.options.option_fields import ALIASES, OPTIONS, ReadOptions, WriteOptions
from spark_lance.spark.options.options import option_table, read_options, write_options

PATH = {"path": "/t"}
NAMES = sorted(ALIASES)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("bathc_size", "did you mean 'batch_size'"),
        ("batchSize", "did you mean 'batch_size'"),
        ("with-row-id", "did you mean 'with_row_id'"),
        ("versionAsof_", "did you mean 'version'"),
        ("time_stamp_as_of", "did you mean 'asof'"),
        ("user_metadata", "did you mean 'commit_message'"),
        ("endpointurl", "did you mean 'endpoint_url'"),
        ("aws_acces_key_id", "did you mean 'aws_access_key_id'"),
        ("storage_key", "did you mean 'storage.key'"),
        ("stroage.key", "did you mean 'storage.key'"),
        ("store.client_kwargs", "did you mean 'storage.client_kwargs'"),
        ("google_service_account", "named storage.google_service_account"),
        ("azure_storage_account_name", "named storage.azure_storage_account_name"),
        ("v.arrow.fixed_size_list.size", "did you mean 'v.arrow.fixed-size-list.size'"),
        ("a.b.arrow.fixed-size-list", "did you mean 'a.b.arrow.fixed-size-list.size'"),
        ("v.lance.nothing", "options of columns end with"),
        ("end-timestamp", "use options 'readChangeFeed' and 'endingTimestamp'"),
        ("pushDownFilters", "spark_lance.enable"),
        ("fs.s3a.secret.key", "use option 'aws_secret_access_key'"),
        ("limit", "use DataFrame.limit"),
        ("owner", None),
        ("provider", None),
        ("header", "leave it out; docs/options.md"),
        ("is_managed_location", None),
    ],
)
def test_what_is_said_of_unknown_options(given: str, message: str | None) -> None:
    for parse in (read_options, write_options):
        if message is None:
            parse({**PATH, given: "7"})
            continue
        with pytest.raises(OptionError) as caught:
            parse({**PATH, given: "7"})
        assert message in str(caught.value)
        assert repr(given) in str(caught.value)


def test_what_others_can_switch_off_may_be_off() -> None:
    assert read_options({**PATH, "pushdownfilters": "False"}) == read_options(PATH)


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_options_are_not_ours_and_their_advice_is(name: str) -> None:
    known = {known.lower() for known in NAMES} | STORAGE_NAMES
    assert name == name.lower()
    assert name not in known
    for word in FOREIGN[name].split("'")[1::2]:
        if "option" in FOREIGN[name] and " " not in word:
            assert word in {*OPTIONS, *STORAGE_NAMES} or word in ("append", "overwrite"), word


@pytest.mark.parametrize("name", NAMES)
def test_every_name_and_alias_is_known_in_any_case(name: str) -> None:
    value = {
        "blob_handling": "all_binary",
        "nearest": "{}",
        "hybrid_search": "{}",
        "compression": "zstd",
        "compression-codec": "zstd",
        "mode": "upsert",
        "overwrite-mode": "dynamic",
        "partitionoverwritemode": "dynamic",
        "json_as": "string",
        "geometry_as": "binary",
        "text_as": "binary",
    }.get(name, "1")
    given = {name.lower(): value, name.upper(): value}
    with pytest.raises(OptionError, match="is given twice, once as"):
        read_options(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"version": "1", "tag": "x"}, "give one of the options"),
        ({"tag": "x", "branch": "dev"}, "no branch with a tag"),
        ({"asof": "2026-01-31", "version": "1"}, "give one of the options"),
        ({"table": "history", "with_row_id": "true"}, "option 'with_row_id' is for rows"),
        ({"table": "history", "readchangefeed": "true"}, "option 'readChangeFeed' is for rows"),
        ({"uri": "/x"}, "'path' is given twice"),
        ({"version": "+1"}, "must be a version number"),
        ({"version": "1_0"}, "must be a version number"),
        ({"version": "\u0663"}, "must be a version number"),
        ({"version": str(2**63)}, "must be a version number"),
        ({"tag": " "}, "'tag' must be a tag"),
        ({"filter": ""}, "'filter' must be an SQL condition"),
        ({"table": ""}, "'table' must be the name of a metadata table"),
        ({"columns": "[" * 100_000}, "'columns' must be names"),
        ({"storage.x": "[" * 100_000}, "starts like JSON"),
    ],
)
def test_options_that_exclude_each_other_and_strict_values(given: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        read_options({**PATH, **given})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["columns", "filter", "fragments"])
def test_an_overwrite_is_never_of_a_part(name: str) -> None:
    given = {**PATH, name: "1"}
    assert write_options(given) == write_options(PATH), "an append may come from a view of a part"
    with pytest.raises(OptionError, match=f"option '{name}' is a part of the table"):
        write_options(given, overwrite=True)


def test_metadata_tables_cannot_be_written_to() -> None:
    with pytest.raises(OptionError, match="metadata tables cannot be written to"):
        write_options({**PATH, "table": "history"})


VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["true", "0", "-1", "8m", "1e3", "a,b", '["a"]', "[", "{}", "0-3,7", "latest", "2026-01-31"]
    ),
    st.integers().map(str),
)
KEYS = st.one_of(st.sampled_from(NAMES + sorted(STORAGE_NAMES) + sorted(FOREIGN)), st.text(max_size=20))


@example({"columns": '{"a": 1}'})
@example({"batch_bytes": "9" * 5000})
@example({"fragments": "3-1"})
@example({"\u0130d.arrow.fixed-size-list.size": "3"})
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_text_is_parsed_or_refused_as_an_option(given: dict[str, str]) -> None:
    for parse, kind in ((read_options, ReadOptions), (write_options, WriteOptions)):
        with contextlib.suppress(OptionError):
            assert isinstance(parse({**PATH, **given}), kind)


def test_the_documentation_does_not_name_an_option_twice() -> None:
    names = [row[0] for group in option_table().values() for row in group]
    assert len(names) == len(set(names))
