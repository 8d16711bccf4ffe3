"""Parses the options of the data source by the fields of `option_fields`. No other code parses options.

Spark passes options as strings with lower-cased names. Times without a zone are in the zone of the session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from spark_lance.errors import OptionError
from spark_lance.spark.options.column_options import COLUMN_OPTIONS, column_option
from spark_lance.spark.options.foreign_options import STORAGE_NAMES, STORAGE_PREFIX, advice
from spark_lance.spark.options.option_fields import (
    ALIASES,
    OPTIONS,
    ReadOptions,
    WriteOptions,
    options_that_choose,
)

# Spark's setting for the time zone of a session.
SESSION_ZONE = "spark.sql.session.timeZone"
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", re.ASCII)


def parse_zone(text: str) -> tzinfo:
    """Parse one of Spark's names of time zones: `Europe/Berlin`, `UTC`, `+02:00`, `GMT+2`.

    Raises:
        OptionError: the zone is unknown.
    """
    name = text.strip()
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return timezone.utc
    if (match := _OFFSET.fullmatch(name)) is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if offset <= timedelta(hours=18):
            return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:  # an unknown name is a KeyError
        raise _unknown_zone_error(text) from error


def _unknown_zone_error(text: str) -> OptionError:
    return OptionError(
        f"time zone {text!r} is unknown: write a name such as Europe/Berlin, or an offset such as +01:00"
    )


def in_zone(moment: datetime | str, zone: str | None) -> datetime:
    """Return a time with a zone. A time without a zone is in `zone`.

    Args:
        moment: a time, or its ISO 8601 text.
        zone: name of the zone; None if it is not known.

    Raises:
        OptionError: the text is not a time, the zone is unknown, or neither has a zone.
    """
    # Imported here because every session imports this module, and only a time needs the table layer.
    from spark_lance.table.versions.resolve import parse_moment

    parsed = parse_moment(moment, None)
    if parsed.tzinfo is not None:
        return parsed
    if zone is None:
        raise OptionError(
            f"time '{parsed}' has no zone, and the session's zone is not known without "
            f"spark_lance.enable(spark): write it with its zone, such as {parsed.isoformat(sep=' ')}+00:00, "
            "or set option 'timeZone'"
        )
    return parsed.replace(tzinfo=parse_zone(zone))


# The ends of the names of column options.
_SUFFIXES = tuple(f".{option.name}" for option in COLUMN_OPTIONS)

# The prefix of options with properties of a commit, as in Iceberg.
_PROPERTY_PREFIX = "snapshot-property."
_RESERVED_PROPERTIES = ("__lance", "lance.", "spark_lance.")

# Excluded option -> the error for an option that cannot be combined with it.
_EXCLUSIONS = {
    "table": "option {name!r} is for rows: option 'table' reads a metadata table",
    "fresh": "option {name!r} cannot be combined with option 'fresh', which reads the newest rows",
}
_EXCLUSION = "option {name!r} cannot be combined with option {other!r}"

_MISSING_PATH = (
    "option 'path' is missing: use load(path) or save(path). Spark hands the options and the location of "
    "tables in its catalog (CREATE TABLE ... USING lance, saveAsTable, writeTo) to no Python data source: "
    "use CREATE TEMPORARY VIEW v USING lance OPTIONS (path '...') instead, or name the path in each "
    "statement, as in SELECT * FROM t WITH (path '...')"
)


def read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read.

    Raises:
        OptionError: a value cannot be parsed, an option is not supported, or there is no path.
    """
    values, _, storage, _ = _parse(raw)
    selectors = [name for name in options_that_choose("version") if values[name] is not None]
    if len(selectors) > 1 or (values["tag"] is not None and values["branch"] is not None):
        raise OptionError("give one of the options version, tag and asof, and no branch with a tag")
    searches = [name for name in options_that_choose("search") if values[name] is not None]
    if len(searches) > 1:
        raise OptionError(
            "a search is by vector, by text or by both: give one of the options "
            + ", ".join(options_that_choose("search"))
        )
    _check_exclusions(values)
    for name, option in OPTIONS.items():
        if option.is_time and values[name] is not None:
            values[name] = in_zone(values[name], values["timeZone"]).isoformat()
    return ReadOptions(**_used_values(values, "read"), storage=storage)


def _used_values(values: Mapping[str, Any], used: str) -> dict[str, Any]:
    """Return the values of the options that reads ("read") or writes ("write") use."""
    return {name: values[name] for name, option in OPTIONS.items() if option.used in (used, "both")}


def _check_exclusions(values: Mapping[str, Any]) -> None:
    for name, option in OPTIONS.items():
        if values[name] == option.default:
            continue
        for other in option.excludes:
            if values[other] != OPTIONS[other].default:
                raise OptionError(_EXCLUSIONS.get(other, _EXCLUSION).format(name=name, other=other))


def check_batch(options: ReadOptions) -> None:
    """Check that a read that is not a change feed or stream has no options of these.

    Raises:
        OptionError: there is such an option.
    """
    present = [
        name for name in options_that_choose("changes") if getattr(options, name) != OPTIONS[name].default
    ]
    if present and not options.readChangeFeed and options.insertedAfter is None:
        raise OptionError(f"option {present[0]!r} is for streams and change feeds: add readChangeFeed=true")


def check_known(raw: Mapping[str, str]) -> None:
    """Check that all options are known, by the rules of `foreign_options`.

    Raises:
        OptionError: an option is unknown.
    """
    for key, text in raw.items():
        name = key.lower()
        if name in ALIASES or name in STORAGE_NAMES or name.startswith(STORAGE_PREFIX):
            continue
        if name.startswith(_PROPERTY_PREFIX):
            _property_name(key)
            continue
        if column_option(name) is None:
            _check_unknown(key, text)


def check_by_name(raw: Mapping[str, str]) -> None:
    """Check that no option of a read by name changes the columns of the table.

    Spark takes the columns from the table before it processes options.

    Raises:
        OptionError: there is such an option. The message says what to select instead.
    """
    options = read_options({**raw, "path": "by name"})
    for name, option in OPTIONS.items():
        if option.by_name is not None and getattr(options, name) != option.default:
            raise OptionError(f"option {name!r} does nothing for a table by name: {option.by_name}")


def write_options(raw: Mapping[str, str], overwrite: bool = False) -> WriteOptions:
    """Parse the options of a write.

    Args:
        raw: the options. Options of reads are ignored, because a view has one set of options for both.
        overwrite: whether the write replaces the table's content.

    Raises:
        OptionError: see `read_options`; or the options choose a version, metadata table or search, which
            cannot be written to; or they choose a part of the table, which an overwrite would replace as a
            whole.
    """
    values, column_settings, storage, properties = _parse(raw)
    for name in options_that_choose("version"):
        if values[name] is not None:
            raise OptionError(f"option {name!r} is for reading: an old version cannot be written to")
    if values["table"] is not None:
        raise OptionError("option 'table' is for reading: metadata tables cannot be written to")
    for name in options_that_choose("search"):
        if values[name] is not None:
            raise OptionError(f"option {name!r} is for reading: what a search finds cannot be written to")
    for name in options_that_choose("part", "columns"):
        if overwrite and values[name] is not None:
            raise OptionError(
                f"option {name!r} is a part of the table, but an overwrite replaces all of it: leave it out"
            )
    if (values["txnAppId"] is None) != (values["txnVersion"] is None) or values["txnAppId"] == "":
        raise OptionError(
            "options 'txnAppId' and 'txnVersion' must be set together, and 'txnAppId' must not be empty"
        )
    return WriteOptions(
        **_used_values(values, "write"),
        column_settings=column_settings,
        storage=storage,
        properties=properties,
    )


def _property_name(key: str) -> str:
    """Return the name of a property of the commit.

    Raises:
        OptionError: the name is empty, or is reserved for the format or this package.
    """
    name = key.lower().removeprefix(_PROPERTY_PREFIX)
    if not name or name.startswith(_RESERVED_PROPERTIES):
        raise OptionError(
            f"option {key!r} cannot be set: choose another name, such as {_PROPERTY_PREFIX}job-id, or use "
            "option 'commit_message' for a text"
        )
    return name


def _parse(
    raw: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, Any], dict[str, str]]:
    """Return (values of OPTIONS, options of columns, storage options, properties of the commit)."""
    parsed: dict[str, Any] = {}
    columns: dict[str, dict[str, Any]] = {}
    storage: dict[str, Any] = {}
    properties: dict[str, str] = {}
    if "paths" in raw:
        raise OptionError("load() takes one path here: load every table by itself and union the DataFrames")
    for key, text in raw.items():
        name = key.lower()
        option = ALIASES.get(name)
        if option is not None:
            if option.name in parsed:
                raise OptionError(f"option {option.name!r} is given twice, once as {key!r}")
            parsed[option.name] = _value(option.name, option.parse, option.expects, text)
        elif name.startswith(STORAGE_PREFIX):
            storage[name.removeprefix(STORAGE_PREFIX)] = _storage_value(key, text)
        elif name in STORAGE_NAMES:
            storage[name] = _storage_value(key, text)
        elif name.startswith(_PROPERTY_PREFIX):
            properties[_property_name(key)] = text
        elif (match := column_option(name)) is not None:
            column, setting = match
            columns.setdefault(column, {})[setting.name] = _value(key, setting.parse, setting.expects, text)
        else:
            _check_unknown(key, text)
    if not parsed.get("path"):
        raise OptionError(_MISSING_PATH)
    if parsed.get("allowed_bases") is not None:
        storage["allowed_bases"] = parsed["allowed_bases"]
    parsed["path"] = _location(parsed["path"])
    values = {name: parsed.get(name, option.default) for name, option in OPTIONS.items()}
    return values, columns, storage, properties


def _value(name: str, parse: Callable[[str], Any], expects: str, text: str) -> Any:
    try:
        return parse(text)
    except OptionError:
        raise
    except (ValueError, RecursionError):
        raise OptionError(f"option {name!r} must be {expects}, not {text!r}") from None


def _storage_value(key: str, text: str) -> Any:
    """Parse the value of a storage option: a boolean, a JSON object or list for nested settings, or text."""
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
    """Raise an error for an option that is not ours, unless Spark reads it or its value is harmless."""
    # Parsing needs no table layer.
    from spark_lance.spark.options.table_properties import property_advice
    from spark_lance.table.format.reserved_names import check_settings

    check_settings([key])
    names = {name: option.name for name, option in ALIASES.items()}
    problem = property_advice(key, text) or advice(key, text, names, _SUFFIXES)
    if problem is not None:
        raise OptionError(problem)


def _location(path: str) -> str:
    """Return the location with Hadoop's spellings (`file:/x`, `s3a://`) replaced by the usual ones."""
    if path.startswith("file:/") and not path.startswith("file://"):
        return "file://" + path.removeprefix("file:")
    return "s3" + path[3:] if path.startswith(("s3a://", "s3n://")) else path


def option_table() -> dict[str, list[tuple[str, str, str]]]:
    """Return (name, default, description) of every option by the heading of its group, for documentation."""
    groups: dict[str, list[tuple[str, str, str]]] = {name: [] for name in _GROUPS}
    for option in OPTIONS.values():
        doc = option.doc.removeprefix(_STREAMS_PREFIX)
        group = _GROUP_OF_USE[option.used]
        if option.chooses == "changes" or (doc != option.doc and option.used == "read"):
            group = "Change feed and streams from a table"
        elif doc != option.doc:
            group = "Streams into a table"
        default = "" if option.default is None else str(option.default)
        groups[group].append((option.name, default, doc[:1].upper() + doc[1:]))
    property_doc = (
        "Text stored with the new version: in `properties` of the metadata table `transactions`, and in "
        "`summary` of `snapshots`."
    )
    groups["Writes"].append((f"{_PROPERTY_PREFIX}<name>", "", property_doc))
    storage_doc = "Setting of the store, such as `storage.endpoint_url`."
    groups["Reads and writes"].append((f"{STORAGE_PREFIX}<name>", "", storage_doc))
    groups["Columns"].extend((f"<column>.{option.name}", "", option.doc) for option in COLUMN_OPTIONS)
    return groups


_STREAMS_PREFIX = "Streams: "
_GROUP_OF_USE = {"both": "Reads and writes", "read": "Reads", "write": "Writes"}
_GROUPS = (
    "Reads and writes",
    "Reads",
    "Change feed and streams from a table",
    "Writes",
    "Streams into a table",
    "Columns",
)
