"""Refuses unknown options: options of other connectors, and misspellings of our own.

Every API refuses an unknown option, with a message that says what to use instead. The exceptions are options
that Spark itself adds or reads (`OF_SPARK`), values that request the default behaviour (`HARMLESS`), and
options that only tune files of Iceberg (`TUNING`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

STORAGE_PREFIX = "storage."

# Names of storage options that are accepted without the prefix, as in other Lance connectors.
STORAGE_NAMES = frozenset(
    {
        "access_key_id",
        "allow_http",
        "anon",
        "aws_access_key_id",
        "aws_default_region",
        "aws_endpoint",
        "aws_endpoint_url",
        "aws_region",
        "aws_secret_access_key",
        "aws_server_side_encryption",
        "aws_session_token",
        "aws_sse_kms_key_id",
        "aws_virtual_hosted_style_request",
        "client_kwargs",
        "client_max_retries",
        "endpoint",
        "endpoint_url",
        "profile",
        "region",
        "request_timeout",
        "secret_access_key",
        "session_token",
    }
)

_USE_ASOF = "use option 'asof' with a time such as 2026-01-31 12:00:00"
_USE_MODE = "use .mode('append') or .mode('overwrite')"
_ROWS_CONFLICT = "leave it out: only changes of the same rows are conflicts"
_NEW_STREAM = "leave it out, and start the stream again after a change of the schema"
_NO_FILES = "a Lance table is not a directory of files: use option 'filter'"

# Options of Delta, Iceberg, lance-spark, pylance and Spark's file sources that change the result of a read or
# write there, in lower case -> what to do instead.
FOREIGN = {
    # Delta
    "allowsourcecolumndrop": _NEW_STREAM,
    "allowsourcecolumnrename": _NEW_STREAM,
    "allowsourcecolumntypechange": _NEW_STREAM,
    "datachange": (
        "leave it out to write rows; LanceTable.forPath(spark, path).optimize().executeCompaction() rewrites "
        "files without changing rows"
    ),
    "excluderegex": _NO_FILES,
    "failondataloss": "leave it out: a stream fails if vacuum has removed versions that it has not read",
    "ignorefiledeletion": "use option 'ignoreChanges'",
    "optimizewrite": "use option 'max_rows_per_file' or 'max_bytes_per_file'",
    "schematrackinglocation": _NEW_STREAM,
    # Iceberg
    "check-ordering": "leave it out: writes match columns by name, and only insertInto by position",
    "compression-level": "name the column: <column>.lance.compression-level",
    "fanout-enabled": "it is true or false: rows of a partitioned table are clustered anyway",
    "distribution-mode": (
        "ALTER TABLE t SET TBLPROPERTIES ('write.distribution-mode' = 'hash'), or repartition the DataFrame"
    ),
    "isolation-level": _ROWS_CONFLICT,
    "validate-from-snapshot-id": _ROWS_CONFLICT,
    "witheventtimeorder": "leave it out: batches have the rows in the order of the files",
    "end-timestamp": "use options 'readChangeFeed' and 'endingTimestamp'",
    "start-timestamp": "use options 'readChangeFeed' and 'startingTimestamp'",
    "streaming-skip-overwrite-snapshots": "use option 'ignoreChanges'",
    "write-format": "leave it out: data files are Lance files",
    # lance-spark and pylance
    "dataset_uri": "give the location to load() or save()",
    "include_deleted_rows": "deleted rows are not read; see option 'readChangeFeed'",
    "limit": "use DataFrame.limit",
    "offset": "use DataFrame.offset",
    "pushdownfilters": "spark_lance.enable(spark) pushes filters",
    "snapshot_id": "use option 'version'",
    "use_stable_row_ids": "use option 'enable_stable_row_ids'",
    "write_mode": _USE_MODE,
    # Spark's file sources
    "modifiedafter": _NO_FILES,
    "modifiedbefore": _NO_FILES,
    "pathglobfilter": _NO_FILES,
    # Hadoop
    "fs.s3a.access.key": "use option 'aws_access_key_id'",
    "fs.s3a.endpoint": "use option 'aws_endpoint'",
    "fs.s3a.endpoint.region": "use option 'aws_region'",
    "fs.s3a.path.style.access": "use option 'aws_virtual_hosted_style_request', which is the opposite",
    "fs.s3a.secret.key": "use option 'aws_secret_access_key'",
    "fs.s3a.session.token": "use option 'aws_session_token'",
}

# Option -> values, in lower case, that request the default behaviour. For all other options that is "false".
HARMLESS = {
    "fanout-enabled": ("true", "false"),
    "datachange": ("true",),
    "distribution-mode": ("none",),
    "failondataloss": ("true",),
    "write-format": ("lance",),
}

# Options of Iceberg, in lower case, that only tune reads and writes of its files. They are ignored. NOT NULL
# columns are checked by their values, so the check of the DataFrame's schema is not needed.
TUNING = frozenset(
    {
        "check-nullability",
        "compression-strategy",
        "file-open-cost",
        "lookback",
        "vectorization-enabled",
    }
)

# Names, in lower case, of options that Spark itself adds or reads.
OF_SPARK = frozenset(
    {
        "asyncprogresstrackingcheckpointintervalms",
        "asyncprogresstrackingenabled",
        "asyncprogresstrackingoverridesinksupportcheck",
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "owner",
        "provider",
        "queryname",
        "serialization.format",
        "table_type",
    }
)

_MIN_SIMILARITY = 0.8
_PREFIX = re.compile("(?:sto|str)[a-z]*[._:-]")
_CLOUDS = ("aws_", "azure_", "gcs_", "google_", "s3_")


def advice(key: str, text: str, names: Mapping[str, str], suffixes: Collection[str]) -> str | None:
    """Return the error message for an unknown option; None if the option is ignored.

    Args:
        key: the option's name as the user wrote it.
        text: the option's value.
        names: the names and aliases of options -> the documented names.
        suffixes: the ends of the names of column options.
    """
    name = key.lower()
    if name in OF_SPARK or name in TUNING:
        return None
    if name in FOREIGN:
        harmless = text.strip().lower() in HARMLESS.get(name, ("false",))
        return None if harmless else f"option {key!r} is not supported: {FOREIGN[name]}"
    if name.startswith("fs.azure.account.key."):
        return (
            f"option {key!r} is not supported: use options 'storage.account_name' and 'storage.account_key'"
        )
    storage = dict(zip(STORAGE_NAMES, STORAGE_NAMES, strict=True))
    close = close_name(name, names) or close_suffix(name, suffixes)
    if close is None and (match := _PREFIX.match(name)):
        close = f"{STORAGE_PREFIX}{name[match.end() :]}"
    close = close or close_name(name, storage)
    if close is not None:
        return f"unknown option {key!r}: did you mean {close!r}?"
    if name.startswith(_CLOUDS):
        return f"unknown option {key!r}: settings of stores are named {STORAGE_PREFIX}{name}"
    if ".arrow." in name or ".lance." in name:
        return f"unknown option {key!r}: options of columns end with {', '.join(suffixes)}"
    return f"unknown option {key!r}: leave it out; docs/options.md lists all options"


def close_name(name: str, names: Mapping[str, str]) -> str | None:
    """Return the documented name that is similar to a misspelt one, ignoring case and separators."""
    folded = {_normalize(candidate): documented for candidate, documented in names.items()}
    matches = difflib.get_close_matches(_normalize(name), folded, n=1, cutoff=_MIN_SIMILARITY)
    return folded[matches[0]] if matches else None


def _normalize(name: str) -> str:
    return re.sub(r"[ ._-]", "", name.lower())


def close_suffix(name: str, suffixes: Collection[str]) -> str | None:
    """Return the column option that is similar to a misspelt one."""
    best: tuple[float, str] = (_MIN_SIMILARITY, "")
    for suffix in suffixes:
        words = name.split(".")
        for parts in range(1, min(len(words), suffix.count(".") + 1)):
            column, ending = ".".join(words[:-parts]), ".".join(words[-parts:])
            ratio = difflib.SequenceMatcher(None, _normalize(ending), _normalize(suffix)).ratio()
            best = max(best, (ratio, f"{column}{suffix}")) if column and ratio > _MIN_SIMILARITY else best
    return best[1] or None
