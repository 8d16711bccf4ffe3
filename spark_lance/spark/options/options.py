"""The options of the data source: the only code that reads option strings, by the table of `option_rows`.

Spark hands options over as strings with lower-cased names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_lance.errors import OptionError
from spark_lance.spark.options.column_options import COLUMN_OPTIONS, column_option
from spark_lance.spark.options.foreign_options import STORAGE_NAMES, STORAGE_PREFIX, advice
from spark_lance.spark.options.moments import in_zone
from spark_lance.spark.options.option_rows import ROWS, Option
from spark_lance.spark.options.option_values import BlobHandling
from spark_lance.spark.options.projection import Projection

__all__ = [
    "OPTIONS",
    "STORAGE_PREFIX",
    "Option",
    "ReadOptions",
    "WriteOptions",
    "check_batch",
    "check_by_name",
    "check_known",
    "option_table",
    "read_options",
    "write_options",
]


OPTIONS: Mapping[str, Option] = {option.name: option for option in ROWS}

# Spark lower-cases names; the alias tables therefore do so too.
_BY_NAME = {name.lower(): option for option in ROWS for name in (option.name, *option.aliases)}

# How the names of options of columns end.
_SUFFIXES = tuple(f".{option.name}" for option in COLUMN_OPTIONS)

# Options whose values are times.
_TIMES = ("asof", "startingTimestamp", "endingTimestamp")

_SEARCHES = ("nearest", "full_text_query", "hybrid_search")

# Options without a meaning for a metadata table.
_OF_ROWS = (
    *_SEARCHES,
    "readChangeFeed",
    "fragments",
    "with_row_id",
    "with_row_address",
    "with_row_offset",
    "with_fragment_id",
    "with_row_versions",
)

# Options that change which columns a read by path has -> what to do for a table by name.
_BY_PATH = "read the table by path, spark.read.format('lance').load(path)"
_OF_COLUMNS = {
    "columns": "select the columns, SELECT a, b FROM t",
    "table": "name the metadata table, such as SELECT * FROM lance.db.t.history",
    "with_row_id": "select the column, SELECT *, _rowid FROM t",
    "with_row_address": "select the column, SELECT *, _rowaddr FROM t",
    "with_row_offset": _BY_PATH,
    "with_fragment_id": "select the column, SELECT *, _fragid FROM t",
    "with_row_versions": "select the columns, SELECT *, _row_created_at_version, "
    "_row_last_updated_at_version FROM t",
    "blob_handling": _BY_PATH,
    "json_as": _BY_PATH,
    "geometry_as": _BY_PATH,
    "text_as": _BY_PATH,
}

_MISSING_PATH = (
    "option 'path' is missing: use load(path) or save(path). Spark hands the options and the location of "
    "tables in its catalog (CREATE TABLE ... USING lance, saveAsTable, writeTo) to no Python data source: "
    "use CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...') instead, or name the path in each "
    "statement, as in SELECT * FROM t WITH (path '...')"
)


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read."""

    path: str
    version: int | None
    tag: str | None
    branch: str | None
    allowed_bases: str | None
    asof: str | None
    table: str | None
    fresh: bool
    columns: tuple[str, ...] | None
    filter: str | None
    nearest: Mapping[str, Any] | None
    full_text_query: Mapping[str, Any] | None
    hybrid_search: Mapping[str, Any] | None
    batch_size: int
    batch_bytes: int
    partition_bytes: int | None
    fragments: tuple[tuple[int, int], ...] | None
    blob_handling: BlobHandling
    json_as: str
    geometry_as: str
    text_as: str
    with_row_id: bool
    with_row_address: bool
    with_row_offset: bool
    with_fragment_id: bool
    with_row_versions: bool
    readChangeFeed: bool
    startingVersion: int | str | None
    startingTimestamp: str | None
    endingVersion: int | None
    endingTimestamp: str | None
    timeZone: str | None
    maxFilesPerTrigger: int
    maxBytesPerTrigger: int | None
    maxRowsPerTrigger: int | None
    ignoreDeletes: bool
    ignoreChanges: bool
    skipChangeCommits: bool
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> str:
        """The kind of read: a key of the table of reads in `source`."""
        if self.table is not None:
            return "metadata"
        if any(getattr(self, name) is not None for name in _SEARCHES):
            return "nearest"
        if self.fresh:
            return "fresh"
        return "changes" if self.readChangeFeed else "rows"

    @property
    def system_columns(self) -> tuple[str, ...]:
        """The system columns that are read in addition to the table's columns."""
        chosen = {
            "_rowid": self.with_row_id,
            "_rowaddr": self.with_row_address,
            "_rowoffset": self.with_row_offset,
            "_fragid": self.with_fragment_id,
            "_row_created_at_version": self.with_row_versions,
            "_row_last_updated_at_version": self.with_row_versions,
        }
        return tuple(name for name, is_chosen in chosen.items() if is_chosen)

    @property
    def projection(self) -> Projection:
        """The columns that are read, and as what types."""
        return Projection(
            self.columns, self.system_columns, self.blob_handling, self.json_as, self.geometry_as
        )


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write; `column_settings` maps lower-cased column paths to options and values."""

    path: str
    max_rows_per_file: int
    max_bytes_per_file: int
    data_storage_version: str | None
    compression: str | None
    enable_stable_row_ids: bool | None
    branch: str | None
    allowed_bases: str | None
    commit_message: str | None
    commit_retries: int | None
    commit_timeout: float | None
    caseSensitive: bool
    mergeSchema: bool
    overwriteSchema: bool | None
    replaceWhere: str | None
    replaceUsing: tuple[str, ...] | None
    replaceOn: str | None
    targetAlias: str
    txnAppId: str | None
    txnVersion: int | None
    streamingQueryId: str | None
    checkpointLocation: str | None
    mode: str
    column_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)


def read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read.

    Raises:
        OptionError: a value that cannot be parsed, an option that is not supported, or no path.
    """
    values, _, storage = _parse(raw)
    names = [option.name for option in ROWS if option.used in ("read", "both")]
    selectors = [name for name in ("version", "tag", "asof") if values[name] is not None]
    if len(selectors) > 1 or (values["tag"] is not None and values["branch"] is not None):
        raise OptionError("give one of the options version, tag and asof, and no branch with a tag")
    if values["table"] is not None:
        strange = [name for name in _OF_ROWS if values[name] != OPTIONS[name].default]
        if strange:
            raise OptionError(f"option {strange[0]!r} is for rows: option 'table' reads a metadata table")
    searches = [name for name in _SEARCHES if values[name] is not None]
    if len(searches) > 1:
        raise OptionError(
            f"a search is by vector, by text or by both: give one of the options {', '.join(_SEARCHES)}"
        )
    if values["fresh"]:
        names_of_parts = ("version", "tag", "asof", "table", "readChangeFeed", "fragments", "with_row_offset",
                          "full_text_query", "hybrid_search")  # fmt: skip
        for name in names_of_parts:
            if values[name] != OPTIONS[name].default:
                raise OptionError(
                    f"option {name!r} does not go with option 'fresh', which reads the newest rows"
                )
    for name in ("readChangeFeed", "fragments"):
        if searches and values[name] != OPTIONS[name].default:
            raise OptionError(f"option {name!r} does not go with option {searches[0]!r}")
    other_reads = [*searches, *(name for name in ("table", "fresh", "readChangeFeed") if values[name])]
    if values["text_as"] != OPTIONS["text_as"].default and other_reads:
        raise OptionError(
            f"option 'text_as' does not go with option {other_reads[0]!r}: read the rows without it"
        )
    for name in _TIMES:
        if values[name] is not None:
            values[name] = in_zone(values[name], values["timeZone"]).isoformat()
    return ReadOptions(**{name: values[name] for name in names}, storage=storage)


def check_batch(options: ReadOptions) -> None:
    """Refuse options of change feeds and streams in a read that is neither.

    Raises:
        OptionError: there is one.
    """
    names = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")
    present = [name for name in names if getattr(options, name) is not None]
    if present and not options.readChangeFeed:
        raise OptionError(f"option {present[0]!r} is for streams and change feeds: add readChangeFeed=true")


def check_known(raw: Mapping[str, str]) -> None:
    """Refuse options that nobody reads, by the rule of `foreign_options`.

    Raises:
        OptionError: an option is unknown.
    """
    for key, text in raw.items():
        name = key.lower()
        if name in _BY_NAME or name in STORAGE_NAMES or name.startswith(STORAGE_PREFIX):
            continue
        if column_option(name) is None:
            _check_unknown(key, text)


def check_by_name(raw: Mapping[str, str]) -> None:
    """Refuse options of a read by name that would give it other columns than the table has.

    Spark takes the columns from the table before it looks at options.

    Raises:
        OptionError: there is such an option; the message says what to select instead.
    """
    options = read_options({**raw, "path": "by name"})
    for name, remedy in _OF_COLUMNS.items():
        if getattr(options, name) != OPTIONS[name].default:
            raise OptionError(f"option {name!r} does nothing for a table by name: {remedy}")


def write_options(raw: Mapping[str, str], overwrite: bool = False) -> WriteOptions:
    """Parse the options of a write.

    Args:
        raw: the options. Those for reading are left aside: a view has one set of options for both.
        overwrite: whether the table's content is replaced.

    Raises:
        OptionError: as `read_options`; or a version was given, but only the latest one can be written to; or
            what is read is a part of the table, which an overwrite would replace as a whole.
    """
    values, column_settings, storage = _parse(raw)
    for name in ("version", "tag", "asof"):
        if values[name] is not None:
            raise OptionError(f"option {name!r} is for reading: an old version cannot be written to")
    if values["table"] is not None:
        raise OptionError("option 'table' is for reading: metadata tables cannot be written to")
    for name in _SEARCHES:
        if values[name] is not None:
            raise OptionError(f"option {name!r} is for reading: what a search finds cannot be written to")
    for name in ("columns", "filter", "fragments"):
        if overwrite and values[name] is not None:
            raise OptionError(
                f"option {name!r} is a part of the table, but an overwrite replaces all of it: leave it out"
            )
    if (values["txnAppId"] is None) != (values["txnVersion"] is None) or values["txnAppId"] == "":
        raise OptionError("options 'txnAppId' and 'txnVersion' come together, and the first is not empty")
    names = [option.name for option in ROWS if option.used in ("write", "both")]
    return WriteOptions(
        **{name: values[name] for name in names}, column_settings=column_settings, storage=storage
    )


def _parse(raw: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]:
    """Return (values of OPTIONS, options of columns, storage options)."""
    parsed: dict[str, Any] = {}
    columns: dict[str, dict[str, Any]] = {}
    storage: dict[str, Any] = {}
    if "paths" in raw:
        raise OptionError("load() takes one path here: load every table by itself and union the DataFrames")
    for key, text in raw.items():
        name = key.lower()
        option = _BY_NAME.get(name)
        if option is not None:
            if option.name in parsed:
                raise OptionError(f"option {option.name!r} is given twice, once as {key!r}")
            parsed[option.name] = _value(option.name, option.parse, option.expects, text)
        elif name.startswith(STORAGE_PREFIX):
            storage[name.removeprefix(STORAGE_PREFIX)] = _storage_value(key, text)
        elif name in STORAGE_NAMES:
            storage[name] = _storage_value(key, text)
        elif (about := column_option(name)) is not None:
            column, setting = about
            columns.setdefault(column, {})[setting.name] = _value(key, setting.parse, setting.expects, text)
        else:
            _check_unknown(key, text)
    if not parsed.get("path"):
        raise OptionError(_MISSING_PATH)
    if parsed.get("allowed_bases") is not None:
        storage["allowed_bases"] = parsed["allowed_bases"]
    parsed["path"] = _location(parsed["path"])
    return {name: parsed.get(name, option.default) for name, option in OPTIONS.items()}, columns, storage


def _value(name: str, parse: Callable[[str], Any], expects: str, text: str) -> Any:
    try:
        return parse(text)
    except OptionError:
        raise
    except (ValueError, RecursionError):
        raise OptionError(f"option {name!r} must be {expects}, not {text!r}") from None


def _storage_value(key: str, text: str) -> Any:
    """File systems take booleans and nested settings; text that is JSON for one of these becomes one."""
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise OptionError(
            f"option {key!r} starts like JSON but is not: check its quotes and brackets"
        ) from None


def _check_unknown(key: str, text: str) -> None:
    """Refuse an option that is not ours, unless Spark reads it or it asks for what happens here anyway."""
    from spark_lance.table.reserved_names import check_settings  # options alone need no table layer

    check_settings([key])
    names = {name: option.name for name, option in _BY_NAME.items()}
    problem = advice(key, text, names, _SUFFIXES)
    if problem is not None:
        raise OptionError(problem)


def _location(path: str) -> str:
    """Return the location with the spellings of Hadoop (`file:/x`, `s3a://`) turned into the usual ones."""
    if path.startswith("file:/") and not path.startswith("file://"):
        return "file://" + path.removeprefix("file:")
    return "s3" + path[3:] if path.startswith(("s3a://", "s3n://")) else path


def option_table() -> list[tuple[str, str, str, str]]:
    """Return (name, used by, default, description) of every option, for documentation."""
    rows = [
        (option.name, option.used, "" if option.default is None else str(option.default), option.doc)
        for option in ROWS
    ]
    return [
        *rows,
        *((f"<column>.{option.name}", "write", "", option.doc) for option in COLUMN_OPTIONS),
        (
            f"{STORAGE_PREFIX}<name>",
            "both",
            "",
            "Setting of the file system or object store, such as `storage.endpoint_url`.",
        ),
    ]
