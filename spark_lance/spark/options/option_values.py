"""Parses the values of options, and defines the projection of a read.

All functions raise a ValueError if the text is not a valid value, or an OptionError with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_lance.errors import OptionError

_SIZE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def count(text: str) -> int:
    """Return a number of 0 or more."""
    # Python's own int() also takes signs, underscores and the digits of other scripts.
    if not re.fullmatch("[0-9]{1,19}", text.strip(), re.ASCII) or int(text) >= 2**63:
        raise ValueError
    return int(text)


def positive(text: str) -> int:
    """Return a number of 1 or more."""
    number = count(text)
    if number < 1:
        raise ValueError
    return number


def choice(*words: str) -> Callable[[str], str]:
    """Return a parser that accepts one of some words, in any case."""

    def parse(text: str) -> str:
        if text.strip().lower() not in words:
            raise ValueError
        return text.strip().lower()

    return parse


def filled(text: str) -> str:
    """Return text that is not empty, without spaces around it."""
    if not text.strip():
        raise ValueError
    return text.strip()


def lower(text: str) -> str:
    """Return text that is not empty, in lower case, without spaces around it."""
    return filled(text).lower()


def starting_version(text: str) -> int | str:
    """Return a version number, or "latest"."""
    return "latest" if text.strip().lower() == "latest" else count(text)


def seconds(text: str) -> float:
    """Return a time such as "90", "500ms" or "2h" in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip().lower())
    if match is None:
        raise ValueError
    return float(match[1]) * {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2]]


def byte_size(text: str) -> int:
    """Return a size such as "64m" or "1 GiB" in bytes, at least 1."""
    match = re.fullmatch(r"([0-9]+) *([bkmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if match is None:
        raise ValueError
    return positive(match[1]) * _SIZE_UNITS[match[2]]


def boolean(text: str) -> bool:
    """Return true or false."""
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.strip().lower() not in values:
        raise ValueError
    return values[text.strip().lower()]


@dataclass(frozen=True)
class BlobHandling:
    """The form in which blob columns are read: "blobs_descriptions", "all_binary", or "none" to omit them.

    Attributes:
        default: the value of columns that are not listed.
        columns: pairs of column name and value.
    """

    default: str = "blobs_descriptions"
    columns: tuple[tuple[str, str], ...] = ()

    def of(self, column: str) -> str:
        """Return the value for a column. The case of its name does not matter."""
        values = {name.lower(): value for name, value in self.columns}
        return values.get(column.lower(), self.default)

    def __str__(self) -> str:
        return ", ".join([*(f"{name}={value}" for name, value in self.columns), self.default])


DESCRIBED_BLOBS = BlobHandling()

_BLOBS_AS: Mapping[str, str] = {
    "blobs_descriptions": "blobs_descriptions",
    "descriptions": "blobs_descriptions",
    "all_binary": "all_binary",
    "bytes": "all_binary",
    "none": "none",
}


def blob_handling(text: str) -> BlobHandling:
    """Parse the handling of blob columns, see `schema.blobs`: one value for all, or `column=value, ...`."""
    default, columns = DESCRIBED_BLOBS.default, dict[str, str]()
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        value = _BLOBS_AS.get(value.strip().lower(), "")
        name = name.strip().strip("`") if equals else "*"
        if not value or not name or name in columns:
            raise ValueError
        columns[name] = value
    default = columns.pop("*", default)
    return BlobHandling(default, tuple(columns.items()))


def column_list(text: str) -> tuple[str, ...]:
    """Parse column names: separated by commas, or a JSON list if names contain commas or backticks."""
    if text.lstrip().startswith("["):
        names = json.loads(text)
        if not all(isinstance(name, str) for name in names):
            raise ValueError
    else:
        names = [name.strip() for name in text.split(",")]
        if "" in names or "`" in text:
            raise ValueError
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise OptionError(f"option 'columns' names a column twice: {', '.join(duplicates)}")
    return tuple(names)


def transform_list(text: str) -> tuple[str, ...]:
    """Parse items of PARTITIONED BY, such as `a, bucket(16, id)`, or a JSON list of them."""
    if text.lstrip().startswith("["):
        items = json.loads(text)
        if not all(isinstance(item, str) for item in items):
            raise ValueError
    else:
        items = [item.strip() for item in re.findall(r"(?:\([^()]*\)|`(?:[^`]|``)*`|[^,])+", text)]
    if not items or "" in items:
        raise ValueError
    return tuple(items)


def number_ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Parse a text such as "0-3,7" into ascending ranges [start, stop)."""
    ranges: list[tuple[int, int]] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranges.append((count(first), count(last or first) + 1))
    bounds = [0, *(bound for span in ranges for bound in span)]
    if any(start >= stop for start, stop in ranges) or bounds != sorted(bounds):
        raise ValueError
    return tuple(ranges)


def search(text: str) -> dict[str, Any]:
    """Parse a search, which is a JSON object."""
    # The text may contain a long vector, so the error does not quote it.
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"options of searches are JSON, but this is not: {error}") from None
    if not isinstance(settings, dict):
        raise OptionError(f'a search is a JSON object such as {{"column": ...}}, not {text[:40]!r}')
    return settings


def words(text: str) -> dict[str, Any]:
    """Parse a text search: a JSON object, or only the words."""
    return search(text) if text.lstrip().startswith("{") else {"query": filled(text)}


@dataclass(frozen=True)
class Projection:
    """The requested columns of a read, and the types in which they are read.

    Attributes:
        columns: names of columns, including system columns; None for all columns of the table.
        system_columns: additional system columns.
        blob_handling: the form in which blob columns are read, see `schema.blobs`. "none" leaves a column
            out, unless `columns` names it.
        json_as: the type of JSON columns, "string" or "variant".
        geometry_as: the type of well-known binary, "binary" or "geometry".
    """

    columns: tuple[str, ...] | None = None
    system_columns: tuple[str, ...] = ()
    blob_handling: BlobHandling = DESCRIBED_BLOBS
    json_as: str = "string"
    geometry_as: str = "binary"
