"""Every option of the data source: its name, how its text is parsed, what it does.

Reading and writing share the names, because a temporary view has one set of options for `SELECT` and for
`INSERT`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spark_lance.errors import OptionError

__all__ = ["ROWS", "Option", "boolean", "positive"]

_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _count(text: str) -> int:
    # Python's own int() also takes signs, underscores and the digits of other scripts.
    if not re.fullmatch("[0-9]{1,19}", text.strip(), re.ASCII) or int(text) >= 2**63:
        raise ValueError
    return int(text)


def positive(text: str) -> int:
    """Return a number of 1 or more; a ValueError says that the text is none."""
    number = _count(text)
    if number < 1:
        raise ValueError
    return number


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text.strip()


def _starting_version(text: str) -> int | str:
    return "latest" if text.strip().lower() == "latest" else _count(text)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip().lower())
    if match is None:
        raise ValueError
    return float(match[1]) * {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2]]


def _byte_size(text: str) -> int:
    match = re.fullmatch(r"([0-9]+) *([bkmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise ValueError
    return positive(match[1]) * _SIZE_UNITS[match[2]]


def boolean(text: str) -> bool:
    """Return true or false; a ValueError says that the text is neither."""
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.strip().lower() not in values:
        raise ValueError
    return values[text.strip().lower()]


def _blob_handling(text: str) -> str:
    value = text.strip().lower()
    if value not in ("blobs_descriptions", "all_binary"):
        raise ValueError
    return value


def _column_list(text: str) -> tuple[str, ...]:
    if text.lstrip().startswith("["):
        names = json.loads(text)
        if not all(isinstance(name, str) for name in names):
            raise ValueError
    else:
        names = [name.strip() for name in text.split(",")]
        if "" in names or "`" in text:
            raise ValueError
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise OptionError(f"option 'columns' names a column twice: {', '.join(doubled)}")
    return tuple(names)


def _number_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the ascending ranges [start, stop) that a text such as "0-3,7" names."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranges.append((_count(first), _count(last or first) + 1))
    bounds = [0, *(bound for span in ranges for bound in span)]
    if any(start >= stop for start, stop in ranges) or bounds != sorted(bounds):
        raise ValueError
    return tuple(ranges)


def _search(text: str) -> dict[str, Any]:
    # The text may hold a long vector, which would bury the message.
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"options of searches are JSON, but this is not: {error}") from None
    if not isinstance(given, dict):
        raise OptionError(f'a search is a JSON object such as {{"column": ...}}, not {text[:40]!r}')
    return given


def _words(text: str) -> dict[str, Any]:
    return _search(text) if text.lstrip().startswith("{") else {"query": _filled(text)}


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
    Option("tag", _filled, "a tag", None, "read", "Read the version that this tag names."),
    Option(
        "branch",
        _filled,
        "a branch",
        None,
        "both",
        "Read this branch, or write to it; `version` then counts on it.",
    ),
    Option(
        "asof",
        _filled,
        "a time such as 2026-01-31 12:00:00",
        None,
        "read",
        "Read the latest version committed at or before this time; without a zone it is in UTC.",
        ("timestampAsOf",),
    ),
    Option(
        "table",
        lambda text: _filled(text).lower(),
        "the name of a metadata table",
        None,
        "read",
        "Read a metadata table instead of the rows: `versions`, `history`, `transactions`, "
        "`fragments`, `files`, `schema`, `indices`, `tags`, `branches` or `config`.",
    ),
    Option(
        "filter",
        _filled,
        "an SQL condition",
        None,
        "read",
        "Read only the rows for which this SQL condition is true, such as `id > 7 and name like 'a%'`.",
        ("filters",),
    ),
    Option(
        "nearest",
        _search,
        "a JSON object",
        None,
        "read",
        'Read the rows nearest to a vector, with `_distance`: JSON such as `{"column": "v", "q": [1, 2], '
        '"k": 10}`. `filter` comes before the search.',
    ),
    Option(
        "full_text_query",
        _words,
        "words, or a JSON object",
        None,
        "read",
        "Read the rows that have these words, with `_score`: words, or JSON with `query`, `column`, `k`, "
        "`operator`, `phrase`. `filter` comes before the search.",
    ),
    Option(
        "hybrid_search",
        _search,
        "a JSON object",
        None,
        "read",
        "Read the rows that a vector and words rank best together, with `_distance`, `_score` and "
        '`_relevance_score`: JSON such as `{"nearest": {"column": "v", "q": [1, 2]}, "full_text_query": '
        '"words", "k": 10}`. `filter` comes before the search.',
    ),
    Option(
        "columns",
        _column_list,
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
        _byte_size,
        "a size such as 8388608 or 8m",
        8 << 20,
        "read",
        "Approximate size of one Arrow batch in bytes; a larger row is a batch by itself.",
    ),
    Option(
        "partition_bytes",
        _byte_size,
        "a size such as 134217728 or 128m",
        None,
        "read",
        "Approximate number of bytes that one task reads; by default every core gets some, 128m at most.",
    ),
    Option(
        "fragments",
        _number_ranges,
        "ascending numbers of fragments such as 0-3,7",
        None,
        "read",
        "Read only the fragments with these numbers, such as `0-3,7`, each as a whole by one task.",
    ),
    Option(
        "blob_handling",
        _blob_handling,
        "blobs_descriptions or all_binary",
        "blobs_descriptions",
        "read",
        "Read blob columns as descriptions of where the bytes are, or, with `all_binary`, as bytes.",
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
        _starting_version,
        "a version number, or `latest`",
        None,
        "read",
        "First version of a change feed or stream; `latest` (streams only): only later changes.",
    ),
    Option(
        "startingTimestamp",
        _filled,
        "a time such as 2026-01-31 12:00:00",
        None,
        "read",
        "Begin with the first version that was committed at this time or later; without a zone it is in UTC.",
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
        _filled,
        "a time such as 2026-01-31 12:00:00",
        None,
        "read",
        "End with the last version that was committed at this time or before; without a zone it is in UTC.",
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
        _byte_size,
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
        _byte_size,
        "a size such as 1073741824 or 1g",
        90 << 30,
        "write",
        "Bytes after which a task starts another data file.",
    ),
    Option(
        "data_storage_version",
        _filled,
        "a file version such as 2.2",
        None,
        "write",
        "File version of a table that is created or overwritten: 2.0, 2.1 or 2.2 (the default).",
        ("file_format_version",),
    ),
    Option(
        "enable_stable_row_ids",
        boolean,
        "true or false",
        None,
        "write",
        "Give the rows of a new table ids that survive compaction.",
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
        _count,
        "a number, 0 or more",
        None,
        "write",
        "How often a commit is tried again after other writers came first; 19 times by default.",
        ("max_retries", "commit_max_retries"),
    ),
    Option(
        "commit_timeout",
        _seconds,
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
        _filled,
        "an SQL condition",
        None,
        "write",
        "An overwrite replaces only the rows for which this SQL condition is true; new rows must satisfy it.",
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
        _count,
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
)
