"""Every option of the data source: its name, how its text is parsed (`option_values`), what it does.

Reading and writing share the names, because a temporary view has one set of options for `SELECT` and for
`INSERT`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_lance.spark.options.option_values import (
    DESCRIBED_BLOBS,
    blob_handling,
    boolean,
    byte_size,
    column_list,
    count,
    filled,
    number_ranges,
    one_of,
    positive,
    search,
    seconds,
    starting_version,
    words,
)

__all__ = ["ROWS", "Option"]


@dataclass(frozen=True)
class Option:
    """One option: its documented name, how its text is parsed and what it does.

    `used` is "read", "write" or "both": an option that is not used by an operation is still checked.
    """

    name: str
    parse: Callable[[str], Any]
    expects: str
    default: Any
    used: str
    doc: str
    aliases: tuple[str, ...] = ()


ROWS = (
    Option(
        "path",
        str.strip,
        "a location",
        None,
        "both",
        "Location of the table; `load()` and `save()` set it.",
        ("uri",),
    ),
    Option(
        "version",
        positive,
        "a version number, 1 or more",
        None,
        "read",
        "Version to read; the latest one if not given.",
        ("versionAsOf",),
    ),
    Option("tag", filled, "a tag", None, "read", "Read the version that this tag names."),
    Option(
        "branch",
        filled,
        "a branch",
        None,
        "both",
        "Read this branch, or write to it; `version` then counts on it.",
    ),
    Option(
        "allowed_bases",
        filled,
        "URIs, separated by commas, or a JSON list of them",
        None,
        "both",
        "Places outside the table that it may use for base paths and external blobs: URIs separated by "
        "commas, or a JSON list. Everything below a URI is included. Not needed for places in the same "
        "bucket, on the same host, or on a disk below the folder that contains the table's folder.",
    ),
    Option(
        "asof",
        filled,
        "a time such as 2026-01-31 12:00:00",
        None,
        "read",
        "Read the latest version committed at or before this time; option `timeZone` is the zone of a time "
        "without one.",
        ("timestampAsOf",),
    ),
    Option(
        "table",
        lambda text: filled(text).lower(),
        "the name of a metadata table",
        None,
        "read",
        "Read a metadata table instead of the rows: `versions`, `history`, `transactions`, "
        "`fragments`, `files`, `schema`, `indices`, `tags`, `branches` or `config`.",
    ),
    Option(
        "fresh",
        boolean,
        "true or false",
        False,
        "read",
        "Read the newest state of every row: of the table, and of what writers have logged and is not in it "
        "yet (MemWAL).",
    ),
    Option(
        "filter",
        filled,
        "an SQL condition",
        None,
        "read",
        "Read only the rows for which this SQL condition is true, such as `id > 7 and name like 'a%'`.",
        ("filters",),
    ),
    Option(
        "nearest",
        search,
        "a JSON object",
        None,
        "read",
        'Read the rows nearest to a vector, with `_distance`: JSON such as `{"column": "v", "q": [1, 2], '
        '"k": 10}`. `filter` comes before the search.',
    ),
    Option(
        "full_text_query",
        words,
        "words, or a JSON object",
        None,
        "read",
        "Read the rows that have these words, with `_score`: words, or JSON with `query`, `column`, `k`, "
        "`operator`, `phrase`. `filter` comes before the search.",
    ),
    Option(
        "hybrid_search",
        search,
        "a JSON object",
        None,
        "read",
        "Read the rows that a vector and words rank best together, with `_distance`, `_score` and "
        '`_relevance_score`: JSON such as `{"nearest": {"column": "v", "q": [1, 2]}, "full_text_query": '
        '"words", "k": 10}`. `filter` comes before the search.',
    ),
    Option(
        "columns",
        column_list,
        "names separated by commas, or a JSON list of names (for names with commas or backquotes)",
        None,
        "read",
        "Columns to read, in this order; nothing else is fetched. All columns if not given.",
    ),
    Option(
        "batch_size",
        positive,
        "a number of rows, 1 or more",
        65_536,
        "read",
        "Maximal number of rows in one Arrow batch.",
    ),
    Option(
        "batch_bytes",
        byte_size,
        "a size such as 8388608 or 8m",
        8 << 20,
        "read",
        "Approximate size of one Arrow batch in bytes; a larger row is a batch by itself.",
    ),
    Option(
        "partition_bytes",
        byte_size,
        "a size such as 134217728 or 128m",
        None,
        "read",
        "Approximate number of bytes that one task reads; by default every core gets some, 128m at most.",
    ),
    Option(
        "fragments",
        number_ranges,
        "ascending numbers of fragments such as 0-3,7",
        None,
        "read",
        "Read only the fragments with these numbers, such as `0-3,7`, each as a whole by one task.",
    ),
    Option(
        "blob_handling",
        blob_handling,
        "blobs_descriptions, all_binary or none, or these by column as in picture=bytes, *=none",
        DESCRIBED_BLOBS,
        "read",
        "Read blob columns as descriptions of where the bytes are, with `all_binary` as bytes, with `none` "
        "not at all; or by column: `picture=bytes, sound=descriptions, *=none`.",
    ),
    Option(
        "json_as",
        one_of("string", "variant"),
        "string or variant",
        "string",
        "read",
        "Read JSON columns as text or as variants.",
    ),
    Option(
        "geometry_as",
        one_of("binary", "geometry"),
        "binary or geometry",
        "binary",
        "read",
        "Read well-known binary as binary, or as Spark's types GEOMETRY and GEOGRAPHY (4.1 and newer).",
    ),
    Option(
        "text_as",
        one_of("string", "binary"),
        "string or binary",
        "string",
        "read",
        "Read text columns as text, or as binary: for tables of other writers whose text is not UTF-8.",
    ),
    Option("with_row_id", boolean, "true or false", False, "read", "Add the column `_rowid`."),
    Option("with_row_address", boolean, "true or false", False, "read", "Add the column `_rowaddr`."),
    Option(
        "with_row_offset",
        boolean,
        "true or false",
        False,
        "read",
        "Add the column `_rowoffset`, the position of the row in the table.",
    ),
    Option(
        "with_fragment_id",
        boolean,
        "true or false",
        False,
        "read",
        "Add the column `_fragid`, the row's fragment.",
    ),
    Option(
        "with_row_versions",
        boolean,
        "true or false",
        False,
        "read",
        "Add the columns `_row_created_at_version` and `_row_last_updated_at_version`.",
    ),
    Option(
        "readChangeFeed",
        boolean,
        "true or false",
        False,
        "read",
        "Read the changed rows of versions, with `_change_type`, `_commit_version` and `_commit_timestamp`.",
        ("readChangeData",),
    ),
    Option(
        "startingVersion",
        starting_version,
        "a version number, or `latest`",
        None,
        "read",
        "First version of a change feed or stream; `latest` (streams only): only later changes.",
    ),
    Option(
        "startingTimestamp",
        filled,
        "a time such as 2026-01-31 12:00:00",
        None,
        "read",
        "Begin with the first version that was committed at this time or later; option `timeZone` is the "
        "zone of a time without one.",
    ),
    Option(
        "endingVersion",
        positive,
        "a version number, 1 or more",
        None,
        "read",
        "Last version of a change feed, inclusive; the latest one if not given.",
    ),
    Option(
        "endingTimestamp",
        filled,
        "a time such as 2026-01-31 12:00:00",
        None,
        "read",
        "End with the last version that was committed at this time or before; option `timeZone` is the zone "
        "of a time without one.",
    ),
    Option(
        "timeZone",
        filled,
        "a zone such as Europe/Berlin or +01:00",
        None,
        "read",
        "Zone of the times in other options that name none. By default it is the session's, "
        "`spark.sql.session.timeZone`; without `enable` it is not known, and such a time is refused.",
    ),
    Option(
        "maxFilesPerTrigger",
        positive,
        "a number of fragments, 1 or more",
        1000,
        "read",
        "Streams: maximal number of fragments in one micro-batch.",
    ),
    Option(
        "maxBytesPerTrigger",
        byte_size,
        "a size such as 1073741824 or 1g",
        None,
        "read",
        "Streams: approximate stored bytes of one micro-batch, which has at least one fragment.",
    ),
    Option(
        "maxRowsPerTrigger",
        positive,
        "a number of rows, 1 or more",
        None,
        "read",
        "Streams: approximate number of rows of one micro-batch, which has at least one fragment.",
    ),
    Option(
        "ignoreDeletes",
        boolean,
        "true or false",
        False,
        "read",
        "Streams: skip versions that only deleted rows, instead of failing.",
    ),
    Option(
        "ignoreChanges",
        boolean,
        "true or false",
        False,
        "read",
        "Streams: for versions that changed rows, deliver inserted rows and the new values of updated ones.",
    ),
    Option(
        "skipChangeCommits",
        boolean,
        "true or false",
        False,
        "read",
        "Streams: skip all versions that updated or deleted rows.",
    ),
    Option(
        "max_rows_per_file",
        positive,
        "a number of rows, 1 or more",
        1 << 20,
        "write",
        "Rows after which a task starts another data file.",
        ("max_row_per_file",),
    ),
    Option(
        "max_bytes_per_file",
        byte_size,
        "a size such as 1073741824 or 1g",
        90 << 30,
        "write",
        "Bytes after which a task starts another data file.",
    ),
    Option(
        "data_storage_version",
        filled,
        "a file version such as 2.2",
        None,
        "write",
        "File version of a table that is created or overwritten: 2.0, 2.1 or 2.2 (the default).",
        ("file_format_version",),
    ),
    Option(
        "compression",
        one_of("zstd", "lz4", "fsst", "none"),
        "zstd, lz4, fsst or none",
        None,
        "write",
        "Compress the columns that say nothing else: zstd or lz4 make files small, none only packs them; "
        "fsst stands for the default choice. A new table keeps it.",
    ),
    Option(
        "enable_stable_row_ids",
        boolean,
        "true or false",
        None,
        "write",
        "Give the rows of a new table ids that survive compaction; by default, if it has a primary key.",
        ("new_table_enable_stable_row_ids",),
    ),
    Option(
        "commit_message",
        str,
        "text",
        None,
        "write",
        "Text kept with the version that the write makes.",
        ("userMetadata",),
    ),
    Option(
        "commit_retries",
        count,
        "a number, 0 or more",
        None,
        "write",
        "How often a commit is tried again after other writers came first; 19 times by default.",
        ("max_retries", "commit_max_retries"),
    ),
    Option(
        "commit_timeout",
        seconds,
        "a time such as 90, 90s or 5m",
        None,
        "write",
        "Time since the first try after which no other one begins; 30m by default.",
    ),
    Option(
        "mergeSchema",
        boolean,
        "true or false",
        False,
        "write",
        "Add the DataFrame's columns and struct fields that the table lacks; old rows are null there.",
        ("merge-schema",),
    ),
    Option(
        "caseSensitive",
        boolean,
        "true or false",
        False,
        "write",
        "Accept columns whose names differ in case alone; for sessions with `spark.sql.caseSensitive`.",
    ),
    Option(
        "overwriteSchema",
        boolean,
        "true or false",
        None,
        "write",
        "An overwrite takes the DataFrame's columns by default; true also drops the stored types of the "
        "table's columns, false keeps the table's columns.",
    ),
    Option(
        "replaceWhere",
        filled,
        "an SQL condition",
        None,
        "write",
        "An overwrite replaces only the rows for which this SQL condition is true; new rows must satisfy it.",
    ),
    Option(
        "replaceUsing",
        column_list,
        "names separated by commas, or a JSON list of names (for names with commas or backquotes)",
        None,
        "write",
        "An overwrite replaces only the rows that equal a new row in these columns, such as `day, region`. "
        "Null equals nothing. Without new rows nothing is replaced.",
    ),
    Option(
        "replaceOn",
        filled,
        "an SQL condition",
        None,
        "write",
        "An overwrite replaces only the rows that this SQL condition matches with a new row, such as "
        "`t.id = s.id AND t.day >= s.day`: `t` is the table (`targetAlias`), any other alias the new rows.",
    ),
    Option(
        "targetAlias",
        filled,
        "an alias",
        "t",
        "write",
        "The alias of the table in `replaceOn`.",
    ),
    Option(
        "txnAppId",
        str,
        "the name of a job",
        None,
        "write",
        "Name of the job that writes; with `txnVersion`, a repeated write is applied only once.",
    ),
    Option(
        "txnVersion",
        count,
        "a number, 0 or more",
        None,
        "write",
        "Number of this write in its job: it is skipped if the job has committed it or a higher one.",
    ),
    Option(
        "streamingQueryId",
        str.strip,
        "a name",
        None,
        "write",
        "Streams: the name under which micro-batches are recorded; by default the id in the checkpoint.",
    ),
    Option(
        "checkpointLocation",
        str.strip,
        "a location",
        None,
        "write",
        "Streams: where Spark keeps its checkpoint.",
    ),
    Option(
        "mode",
        one_of("append", "upsert"),
        "append or upsert (for batches there is .mode('append') or .mode('overwrite'))",
        "append",
        "write",
        "Streams: `upsert` writes rows to the logs of the table's MemWAL, by its primary key; `append` makes "
        "a version of each micro-batch.",
    ),
)
