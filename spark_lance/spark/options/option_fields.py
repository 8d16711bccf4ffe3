"""Every option of the data source, as a field of `ReadOptions`, `WriteOptions`, or both by `TableOptions`.

The field declares the option's parser, its default, its documentation, and what it chooses. All lists of
options are derived from these declarations: in Java, in the documentation, in the checks in `options`, and in
other modules. Reads and writes share the names, because a temporary view has one set of options for `SELECT`
and for `INSERT`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, cast

from spark_lance.spark.options.option_values import (
    DESCRIBED_BLOBS,
    BlobHandling,
    Projection,
    blob_handling,
    boolean,
    byte_size,
    choice,
    column_list,
    count,
    filled,
    lower,
    number_ranges,
    positive,
    search,
    seconds,
    starting_version,
    transform_list,
    words,
)

# What an option chooses: the location of the table, one version of it, the changes between versions, some of
# a version's rows, its columns, the result of a search, another source of rows, or the rows that an overwrite
# replaces.
Choice = Literal["", "location", "version", "changes", "part", "columns", "search", "source", "replaced rows"]
Value = TypeVar("Value")
Default = TypeVar("Default")


@dataclass(frozen=True)
class Option:
    """The declaration of one option.

    Attributes:
        parse: parses a text, or raises a ValueError.
        expects: description of a valid text, for errors.
        default: the value without the option.
        doc: one or two sentences of documentation.
        aliases: other names. For options that choose a version these include Spark's names for time travel.
        chooses: what the option chooses.
        is_time: whether the value is a time. `timeZone` is its zone if it has none.
        excludes: options that cannot be combined with this one.
        system_columns: the columns that the option adds.
        by_name: for options that change the columns of a read: what to do instead for a table by name.
        name: the name of the field.
        used: "read", "write" or "both". The values of unused options are checked, too.
    """

    parse: Callable[[str], Any]
    expects: str
    default: Any
    doc: str
    aliases: tuple[str, ...] = ()
    chooses: Choice = ""
    is_time: bool = False
    excludes: tuple[str, ...] = ()
    system_columns: tuple[str, ...] = ()
    by_name: str | None = None
    name: str = ""
    used: str = ""


def option(
    parse: Callable[[str], Value], expects: str, default: Default, doc: str, **details: Any
) -> Value | Default:
    """Return the field of an option; see `Option`."""
    declaration = Option(parse, expects, default, doc, **details)
    # The decorator `dataclass` takes the Field; instances have the value.
    return cast("Value | Default", field(default=default, metadata={"option": declaration}))


_BY_PATH = "read the table by path, spark.read.format('lance').load(path)"
_TIME = "a time such as 2026-01-31 12:00:00"


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """The options of reads and writes."""

    path: str = option(
        str.strip,
        "a location",
        "",
        "Location of the table; `load()` and `save()` set it.",
        aliases=("uri",),
        chooses="location",
    )
    branch: str | None = option(
        filled,
        "a branch",
        None,
        "Branch to read or write; `version` is then a version of this branch.",
        chooses="location",
    )
    allowed_bases: str | None = option(
        filled,
        "URIs, separated by commas, or a JSON list of them",
        None,
        "[Locations outside the table](security.md#paths-and-bases) that it may use: URIs separated by "
        "commas, or a JSON list.",
        chooses="location",
    )
    storage: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(TableOptions):
    """The options of a read."""

    version: int | None = option(
        positive,
        "a version number, 1 or more",
        None,
        "Version to read; by default the latest.",
        aliases=("versionAsOf", "snapshot-id"),
        chooses="version",
        excludes=("fresh",),
    )
    tag: str | None = option(
        filled, "a tag", None, "Tag of the version to read.", chooses="version", excludes=("fresh",)
    )
    asof: str | None = option(
        filled,
        _TIME,
        None,
        "Read the latest version at this time.",
        aliases=("timestampAsOf", "as-of-timestamp"),
        chooses="version",
        is_time=True,
        excludes=("fresh",),
    )
    table: str | None = option(
        lower,
        "the name of a metadata table",
        None,
        "Read a [metadata table](metadata.md) instead of the rows.",
        chooses="source",
        excludes=("fresh",),
        by_name="name the metadata table, such as SELECT * FROM lance.db.t.history",
    )
    fresh: bool = option(
        boolean,
        "true or false",
        False,
        "Include logged rows that are not merged into the table yet (MemWAL).",
        chooses="source",
    )
    columns: tuple[str, ...] | None = option(
        column_list,
        "names separated by commas, or a JSON list of names (for names with commas or backquotes)",
        None,
        "Columns to read, in this order; by default all.",
        chooses="columns",
        by_name="select the columns, SELECT a, b FROM t",
    )
    filter: str | None = option(
        filled,
        "an SQL condition",
        None,
        "SQL condition of the rows to read, such as `id > 7 and name like 'a%'`. Applies before a search.",
        aliases=("filters",),
        chooses="part",
    )
    nearest: Mapping[str, Any] | None = option(
        search,
        "a JSON object",
        None,
        'Read the rows nearest to a vector, with `_distance`: JSON such as `{"column": "v", "q": [1, 2], '
        '"k": 10}`.',
        chooses="search",
        excludes=("table",),
    )
    full_text_query: Mapping[str, Any] | None = option(
        words,
        "words, or a JSON object",
        None,
        "Read the rows that have these words, with `_score`: words, or JSON with `query`, `column`, `k`, "
        "`operator`, `phrase`.",
        chooses="search",
        excludes=("table", "fresh"),
    )
    hybrid_search: Mapping[str, Any] | None = option(
        search,
        "a JSON object",
        None,
        "Read the rows that rank best by vector and words together, with `_distance`, `_score` and "
        '`_relevance_score`: JSON such as `{"nearest": {"column": "v", "q": [1, 2]}, "full_text_query": '
        '"words", "k": 10}`.',
        chooses="search",
        excludes=("table", "fresh"),
    )
    batch_size: int = option(
        positive,
        "a number of rows, 1 or more",
        65_536,
        "Maximum number of rows in an Arrow batch.",
        aliases=("batch-size",),
    )
    batch_bytes: int = option(
        byte_size,
        "a size such as 8388608 or 8m",
        8 << 20,
        "Approximate size of an Arrow batch; a larger row is a batch by itself.",
    )
    partition_bytes: int | None = option(
        byte_size,
        "a size such as 134217728 or 128m",
        None,
        "Approximate bytes for each task; by default at most 128m.",
        aliases=("split-size",),
    )
    fragments: tuple[tuple[int, int], ...] | None = option(
        number_ranges,
        "ascending numbers of fragments such as 0-3,7",
        None,
        "Ids of the fragments to read, such as `0-3,7`. One task reads a whole fragment.",
        chooses="part",
        excludes=("table", "fresh", "nearest", "full_text_query", "hybrid_search"),
    )
    blob_handling: BlobHandling = option(  # noqa: RUF009
        blob_handling,
        "blobs_descriptions, all_binary or none, or these by column as in picture=bytes, *=none",
        DESCRIBED_BLOBS,
        "Read blob columns as descriptions without the bytes, as bytes (`all_binary`) or not at all "
        "(`none`); or by column: `picture=bytes, sound=descriptions, *=none`.",
        by_name=_BY_PATH,
    )
    json_as: str = option(
        choice("string", "variant"),
        "string or variant",
        "string",
        "Read JSON columns as `string` or `variant`.",
        by_name=_BY_PATH,
    )
    geometry_as: str = option(
        choice("binary", "geometry"),
        "binary or geometry",
        "binary",
        "Read well-known binary as `binary`, or as `geometry`: GEOMETRY and GEOGRAPHY of Spark 4.1.",
        by_name=_BY_PATH,
    )
    text_as: str = option(
        choice("string", "binary"),
        "string or binary",
        "string",
        "Read text columns as `string`, or as `binary` for text that is not UTF-8.",
        excludes=("nearest", "full_text_query", "hybrid_search", "table", "fresh", "readChangeFeed"),
        by_name=_BY_PATH,
    )
    with_row_id: bool = option(
        boolean,
        "true or false",
        False,
        "Add the column `_rowid`.",
        excludes=("table",),
        system_columns=("_rowid",),
        by_name="select the column, SELECT *, _rowid FROM t",
    )
    with_row_address: bool = option(
        boolean,
        "true or false",
        False,
        "Add the column `_rowaddr`.",
        excludes=("table",),
        system_columns=("_rowaddr",),
        by_name="select the column, SELECT *, _rowaddr FROM t",
    )
    with_row_offset: bool = option(
        boolean,
        "true or false",
        False,
        "Add the column `_rowoffset`, the position of the row in the table.",
        excludes=("table", "fresh"),
        system_columns=("_rowoffset",),
        by_name=_BY_PATH,
    )
    with_fragment_id: bool = option(
        boolean,
        "true or false",
        False,
        "Add the column `_fragid`, the row's fragment.",
        excludes=("table",),
        system_columns=("_fragid",),
        by_name="select the column, SELECT *, _fragid FROM t",
    )
    with_row_versions: bool = option(
        boolean,
        "true or false",
        False,
        "Add the columns `_row_created_at_version` and `_row_last_updated_at_version`.",
        excludes=("table",),
        system_columns=("_row_created_at_version", "_row_last_updated_at_version"),
        by_name="select the columns, SELECT *, _row_created_at_version, _row_last_updated_at_version FROM t",
    )
    readChangeFeed: bool = option(
        boolean,
        "true or false",
        False,
        "Read changed rows, with `_change_type`, `_commit_version` and `_commit_timestamp`.",
        aliases=("readChangeData",),
        chooses="changes",
        excludes=("table", "fresh", "nearest", "full_text_query", "hybrid_search"),
    )
    startingVersion: int | str | None = option(
        starting_version,
        "a version number, or `latest` (for a time use option 'startingTimestamp')",
        None,
        "First version; `latest` (streams only): only later changes.",
        chooses="changes",
    )
    startingTimestamp: str | None = option(
        filled,
        _TIME,
        None,
        "Begin with the first version at or after this time.",
        chooses="changes",
        is_time=True,
        aliases=("stream-from-timestamp",),
    )
    endingVersion: int | None = option(
        positive,
        "a version number, 1 or more",
        None,
        "Last version of a change feed, inclusive; by default the latest.",
        chooses="changes",
        aliases=("end-snapshot-id",),
    )
    insertedAfter: int | None = option(
        count,
        "a version number, 0 or more",
        None,
        "Read only the rows that later versions inserted, up to `endingVersion`. Versions that updated or "
        "deleted rows are skipped.",
        chooses="changes",
        aliases=("start-snapshot-id",),
        excludes=(
            *("version", "tag", "asof", "table", "fresh", "nearest", "full_text_query", "hybrid_search"),
            *("fragments", "text_as", "with_row_offset"),
            *("readChangeFeed", "startingVersion", "startingTimestamp"),
        ),
        by_name=_BY_PATH,
    )
    endingTimestamp: str | None = option(
        filled,
        _TIME,
        None,
        "End with the last version at or before this time.",
        chooses="changes",
        is_time=True,
    )
    timeZone: str | None = option(
        filled,
        "a zone such as Europe/Berlin or +01:00",
        None,
        "Time zone of times without a zone in other options; by default `spark.sql.session.timeZone`. "
        "Required for such times without `enable`.",
    )
    maxFilesPerTrigger: int = option(
        positive,
        "a number of fragments, 1 or more",
        1000,
        "Streams: maximum number of fragments in a micro-batch.",
        aliases=("streaming-max-files-per-micro-batch",),
    )
    maxBytesPerTrigger: int | None = option(
        byte_size,
        "a size such as 1073741824 or 1g",
        None,
        "Streams: approximate stored bytes in a micro-batch, but at least one fragment.",
    )
    maxRowsPerTrigger: int | None = option(
        positive,
        "a number of rows, 1 or more",
        None,
        "Streams: approximate number of rows in a micro-batch, but at least one fragment.",
        aliases=("streaming-max-rows-per-micro-batch",),
    )
    ignoreDeletes: bool = option(
        boolean,
        "true or false",
        False,
        "Streams: skip versions that only deleted rows.",
        aliases=("streaming-skip-delete-snapshots",),
    )
    ignoreChanges: bool = option(
        boolean,
        "true or false",
        False,
        "Streams: deliver the inserted rows and new values of versions that changed rows.",
    )
    skipChangeCommits: bool = option(
        boolean, "true or false", False, "Streams: skip all versions that updated or deleted rows."
    )

    @property
    def kind(self) -> str:
        """The kind of read: a key of `scan.kinds.READ_KINDS`."""
        if self.table is not None:
            return "metadata"
        if any(getattr(self, name) is not None for name in options_that_choose("search")):
            return "nearest"
        if self.fresh:
            return "fresh"
        if self.insertedAfter is not None:
            return "inserted rows"
        return "changes" if self.readChangeFeed else "rows"

    @property
    def system_columns(self) -> tuple[str, ...]:
        """The system columns that options add to the table's columns."""
        return tuple(
            column
            for option in OPTIONS.values()
            if option.system_columns and getattr(self, option.name)
            for column in option.system_columns
        )

    @property
    def projection(self) -> Projection:
        """The columns to read and their types."""
        return Projection(
            self.columns, self.system_columns, self.blob_handling, self.json_as, self.geometry_as
        )


@dataclass(frozen=True, kw_only=True)
class WriteOptions(TableOptions):
    """The options of a write.

    Attributes:
        column_settings: lower-cased column paths -> options and values.
        properties: properties of the commit, by their lower-cased names.
    """

    max_rows_per_file: int = option(
        positive,
        "a number of rows, 1 or more",
        1 << 20,
        "Maximum rows in a data file.",
        aliases=("max_row_per_file", "maxRecordsPerFile"),
    )
    max_bytes_per_file: int = option(
        byte_size,
        "a size such as 1073741824 or 1g",
        90 << 30,
        "Maximum bytes in a data file.",
        aliases=("target-file-size-bytes",),
    )
    data_storage_version: str | None = option(
        filled,
        "a file version such as 2.2",
        None,
        "File version of a created or overwritten table: 2.0, 2.1 or 2.2 (the default).",
        aliases=("file_format_version",),
    )
    compression: str | None = option(
        choice("zstd", "lz4", "fsst", "none"),
        "zstd, lz4, fsst or none",
        None,
        "Compression of columns without their own setting: `fsst` (the default), `zstd` or `lz4` for smaller "
        "files, or `none`. A new table keeps this setting.",
        aliases=("compression-codec",),
    )
    enable_stable_row_ids: bool | None = option(
        boolean,
        "true or false",
        None,
        "Give the rows of a new table ids that survive compaction; by default if it has a primary key.",
        aliases=("new_table_enable_stable_row_ids",),
    )
    commit_message: str | None = option(
        str,
        "text",
        None,
        "Message of the new version.",
        aliases=("userMetadata",),
    )
    commit_retries: int | None = option(
        count,
        "a number, 0 or more",
        None,
        "Number of retries of a commit after conflicts; by default 19.",
        aliases=("max_retries", "commit_max_retries"),
    )
    commit_timeout: float | None = option(
        seconds,
        "a time such as 90, 90s or 5m",
        None,
        "Time since the first attempt after which no retry starts; by default 30m.",
    )
    caseSensitive: bool = option(
        boolean,
        "true or false",
        False,
        "Accept column names that differ only in case.",
    )
    mergeSchema: bool = option(
        boolean,
        "true or false",
        False,
        "Add new columns and struct fields of the DataFrame to the table; old rows get null.",
        aliases=("merge-schema",),
    )
    overwriteSchema: bool | None = option(
        boolean,
        "true or false",
        None,
        "Columns after an overwrite: by default the DataFrame's. `true` also drops the table's stored types; "
        "`false` keeps the table's columns.",
    )
    replaceWhere: str | None = option(
        filled,
        "an SQL condition",
        None,
        "SQL condition of the rows that an overwrite replaces; new rows must satisfy it.",
        chooses="replaced rows",
    )
    replaceUsing: tuple[str, ...] | None = option(
        column_list,
        "names separated by commas, or a JSON list of names (for names with commas or backquotes)",
        None,
        "An overwrite replaces only rows that equal a new row in these columns, such as `day, region`. "
        "Null equals nothing.",
        chooses="replaced rows",
    )
    replaceOn: str | None = option(
        filled,
        "an SQL condition",
        None,
        "An overwrite replaces only rows that match a new row by this SQL condition, such as "
        "`t.id = s.id AND t.day >= s.day`. `t` is the table (`targetAlias`), any other alias the new rows.",
        chooses="replaced rows",
    )
    partitionBy: tuple[str, ...] | None = option(
        transform_list,
        "columns or transforms such as a, days(ts), bucket(16, id), or a JSON list of them",
        None,
        "Partitions of a new table, such as `a, days(ts)`; an existing table must have the same.",
    )
    partitionOverwriteMode: str = option(
        choice("static", "dynamic"),
        "static or dynamic",
        "static",
        "`dynamic`: an overwrite replaces only the partitions of the new rows.",
        aliases=("overwrite-mode",),
    )
    targetAlias: str = option(filled, "an alias", "t", "Alias of the table in `replaceOn`.")
    txnAppId: str | None = option(
        str,
        "the name of a job",
        None,
        "Name of the job; with `txnVersion`, a repeated write is applied only once.",
    )
    txnVersion: int | None = option(
        count,
        "a number, 0 or more",
        None,
        "Number of this write in its job; skipped if the job has committed it or a higher one.",
    )
    streamingQueryId: str | None = option(
        str.strip,
        "a name",
        None,
        "Streams: name of the query in commits; by default the id in the checkpoint.",
    )
    checkpointLocation: str | None = option(
        str.strip, "a location", None, "Streams: location of Spark's checkpoint."
    )
    mode: str = option(
        choice("append", "upsert"),
        "append or upsert (for batches there is .mode('append') or .mode('overwrite'))",
        "append",
        "Streams: `append` creates a version for each micro-batch; `upsert` writes to the table's logs "
        "(MemWAL), by primary key.",
    )
    column_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def _declarations(kind: type, used: str) -> dict[str, Option]:
    shared = {} if kind is TableOptions else TableOptions.__dataclass_fields__
    return {
        item.name: dataclasses.replace(item.metadata["option"], name=item.name, used=used)
        for item in fields(kind)
        if "option" in item.metadata and item.name not in shared
    }


OPTIONS: Mapping[str, Option] = {
    **_declarations(TableOptions, "both"),
    **_declarations(ReadOptions, "read"),
    **_declarations(WriteOptions, "write"),
}

# Lower-cased name or alias -> option: Spark lower-cases the names.
ALIASES: Mapping[str, Option] = {
    name.lower(): option for option in OPTIONS.values() for name in (option.name, *option.aliases)
}


def options_that_choose(*choices: Choice) -> tuple[str, ...]:
    """Return the names of the options with one of these choices."""
    return tuple(option.name for option in OPTIONS.values() if option.chooses in choices)


def java_option_names() -> dict[str, list[str]]:
    """Return the lower-case names and aliases of options by the groups that Java distinguishes.

    version: options that choose one version
    timeTravel: Spark's own names for a version
    versions: options that choose versions, or rows that are in no version
    time: options whose value is a time, which needs a zone
    changeFeed: options that read the changes of a table
    replacement: options that choose the rows that an overwrite replaces
    """
    options = OPTIONS.values()
    return {
        # A branch has versions of its own.
        "version": [*_names(o for o in options if o.chooses == "version"), "branch"],
        # Spark loads the version in these options itself; we handle all other options.
        "timeTravel": ["versionasof", "timestampasof"],
        "versions": _names(o for o in options if o.chooses in ("version", "changes") or o.name == "fresh"),
        "time": _names(o for o in options if o.is_time),
        "changeFeed": _names([OPTIONS["readChangeFeed"]]),
        "replacement": _names(o for o in options if o.chooses == "replaced rows"),
    }


def _names(options: Iterable[Option]) -> list[str]:
    return [name.lower() for option in options for name in (option.name, *option.aliases)]
