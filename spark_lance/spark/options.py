"""The options of the data source: the only code that reads option strings, by the table of `option_rows`.

Spark hands options over as strings with lower-cased names.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_lance.errors import OptionError
from spark_lance.spark.option_rows import ROWS, Option, positive

__all__ = [
    "OPTIONS",
    "STORAGE_PREFIX",
    "VECTOR_SIZE_SUFFIX",
    "Option",
    "ReadOptions",
    "WriteOptions",
    "check_batch",
    "option_table",
    "read_options",
    "write_options",
]

STORAGE_PREFIX = "storage."
VECTOR_SIZE_SUFFIX = ".arrow.fixed-size-list.size"

OPTIONS: Mapping[str, Option] = {option.name: option for option in ROWS}

# Spark lower-cases names; the alias tables therefore do so too.
_BY_NAME = {name.lower(): option for option in ROWS for name in (option.name, *option.aliases)}

# Names of storage options that may be given without the prefix, as other Lance connectors accept them.
_STORAGE_NAMES = frozenset(
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

# Options of Delta, Iceberg and pylance that change what is read or written: ignoring one would silently
# give the user other data than asked for.
_REFUSED = frozenset(
    {
        "partitionoverwritemode",
    }
)

_MISSING_PATH = (
    "option 'path' is missing: use load(path) or save(path). Spark does not hand the options of tables made "
    "with CREATE TABLE ... USING lance to a Python data source; use CREATE TEMPORARY VIEW v USING lance "
    "OPTIONS (path '...') instead"
)


@dataclass(frozen=True)
class ReadOptions:
    """What a read was asked for."""

    path: str
    version: int | None
    tag: str | None
    branch: str | None
    asof: str | None
    table: str | None
    columns: tuple[str, ...] | None
    filter: str | None
    batch_size: int
    batch_bytes: int
    partition_bytes: int | None
    fragments: tuple[tuple[int, int], ...] | None
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
    maxFilesPerTrigger: int
    maxBytesPerTrigger: int | None
    maxRowsPerTrigger: int | None
    ignoreDeletes: bool
    ignoreChanges: bool
    skipChangeCommits: bool
    storage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What is read: a key of the table of reads in `source`."""
        if self.table is not None:
            return "metadata"
        return "changes" if self.readChangeFeed else "rows"

    @property
    def system_columns(self) -> tuple[str, ...]:
        """The system columns that are read beside the others."""
        chosen = {
            "_rowid": self.with_row_id,
            "_rowaddr": self.with_row_address,
            "_rowoffset": self.with_row_offset,
            "_fragid": self.with_fragment_id,
            "_row_created_at_version": self.with_row_versions,
            "_row_last_updated_at_version": self.with_row_versions,
        }
        return tuple(name for name, wanted in chosen.items() if wanted)


@dataclass(frozen=True)
class WriteOptions:
    """What a write was asked for; `vector_sizes` maps lower-cased column paths to vector lengths."""

    path: str
    max_rows_per_file: int
    max_bytes_per_file: int
    data_storage_version: str | None
    enable_stable_row_ids: bool | None
    commit_message: str | None
    mergeSchema: bool
    overwriteSchema: bool | None
    replaceWhere: str | None
    txnAppId: str | None
    txnVersion: int | None
    streamingQueryId: str | None
    checkpointLocation: str | None
    vector_sizes: Mapping[str, int] = field(default_factory=dict)
    storage: Mapping[str, Any] = field(default_factory=dict)


def read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read.

    Raises:
        OptionError: a value that cannot be parsed, an option that is not supported, or no path.
    """
    values, _, storage = _parse(raw)
    names = [option.name for option in ROWS if option.used in ("read", "both")]
    given = [name for name in ("version", "tag", "asof") if values[name] is not None]
    if len(given) > 1 or (values["tag"] is not None and values["branch"] is not None):
        raise OptionError("give one of the options version, tag and asof, and no branch with a tag")
    return ReadOptions(**{name: values[name] for name in names}, storage=storage)


def check_batch(options: ReadOptions) -> None:
    """Refuse options of change feeds and streams in a read that is neither.

    Raises:
        OptionError: there is one.
    """
    names = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")
    given = [name for name in names if getattr(options, name) is not None]
    if given and not options.readChangeFeed:
        raise OptionError(f"option {given[0]!r} is for streams and change feeds: add readChangeFeed=true")


def write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write.

    Raises:
        OptionError: as `read_options`, or a version was given: only the latest one can be written to.
    """
    values, vector_sizes, storage = _parse(raw)
    for name in ("version", "tag", "asof"):
        if values[name] is not None:
            raise OptionError(f"option {name!r} is for reading: an old version cannot be written to")
    if values["branch"] is not None:
        raise OptionError("option 'branch' is for reading: give the branch's own path, {path}/tree/{branch}")
    if (values["txnAppId"] is None) != (values["txnVersion"] is None) or values["txnAppId"] == "":
        raise OptionError("options 'txnAppId' and 'txnVersion' come together, and the first is not empty")
    names = [option.name for option in ROWS if option.used in ("write", "both")]
    return WriteOptions(**{name: values[name] for name in names}, vector_sizes=vector_sizes, storage=storage)


def _parse(raw: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, int], dict[str, Any]]:
    """Return (values of OPTIONS, vector sizes, storage options)."""
    given: dict[str, Any] = {}
    vector_sizes: dict[str, int] = {}
    storage: dict[str, Any] = {}
    if "paths" in raw:
        raise OptionError("load() takes one path here: load every table by itself and union the DataFrames")
    for key, text in raw.items():
        name = key.lower()
        option = _BY_NAME.get(name)
        if option is not None:
            if option.name in given:
                raise OptionError(f"option {option.name!r} is given twice, once as {key!r}")
            given[option.name] = _value(option.name, option.parse, option.expects, text)
        elif name.startswith(STORAGE_PREFIX):
            storage[name.removeprefix(STORAGE_PREFIX)] = _storage_value(key, text)
        elif name in _STORAGE_NAMES:
            storage[name] = _storage_value(key, text)
        elif name.endswith(VECTOR_SIZE_SUFFIX):
            column = name.removesuffix(VECTOR_SIZE_SUFFIX)
            vector_sizes[column] = _value(key, positive, "a vector length, 1 or more", text)
        else:
            _check_unknown(key, text)
    if not given.get("path"):
        raise OptionError(_MISSING_PATH)
    given["path"] = _location(given["path"])
    return {name: given.get(name, option.default) for name, option in OPTIONS.items()}, vector_sizes, storage


def _value(name: str, parse: Callable[[str], Any], expects: str, text: str) -> Any:
    try:
        return parse(text)
    except OptionError:
        raise
    except ValueError:
        raise OptionError(f"option {name!r} must be {expects}, not {text!r}") from None


def _storage_value(key: str, text: str) -> Any:
    """File systems take booleans and nested settings; text that is JSON for one of these becomes one."""
    if text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f"option {key!r} starts like JSON but is not: {text!r}") from None


def _check_unknown(key: str, text: str) -> None:
    """Refuse an option that would change the result, or that is one of ours misspelt; ignore others.

    Others are ignored because Spark adds its own (`owner`, `provider`, ...).
    """
    name = key.lower()
    if name in _REFUSED and text.strip().lower() != "false":
        raise OptionError(f"option {key!r} is not supported by this release")
    if ".arrow." in name or ".lance." in name:
        raise OptionError(f"unknown column option {key!r}: '<column>{VECTOR_SIZE_SUFFIX}' exists")
    close = difflib.get_close_matches(name, _BY_NAME, n=1, cutoff=0.8)
    if close:
        raise OptionError(f"unknown option {key!r}: did you mean {_BY_NAME[close[0]].name!r}?")


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
        (
            f"<column>{VECTOR_SIZE_SUFFIX}",
            "write",
            "",
            "Store an array column of a new table as vectors of this length (a fixed-size list).",
        ),
        (
            f"{STORAGE_PREFIX}<name>",
            "both",
            "",
            "Setting of the file system or object store, such as `storage.endpoint_url`.",
        ),
    ]
