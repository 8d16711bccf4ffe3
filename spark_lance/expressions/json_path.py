"""JSONPath, as far as the reference has it: where in documents values are.

    $ or nothing              the document
    .name  :name  ["name"]    the member of an object; names of letters, digits and _ need no quotes
    .*                        every member of an object
    [0]  [last]  [last-1]     items of an array; several are separated by commas
    [*]                       every item of an array; what is no array itself

Spaces may stand around steps and in brackets. Ranges of items, filters and predicates are not supported.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spark_lance.errors import ExpressionError
from spark_lance.jsonb.values import ARRAY, MISSING, OBJECT, JsonValues

_NAME = re.compile(r"[.:]\s*(?:(\w+)|(\"(?:[^\"\\]|\\.)*\"))")
_QUOTED = re.compile(r"\[\s*(\"(?:[^\"\\]|\\.)*\")\s*\]")
_ITEMS = re.compile(r"\[\s*((?:last(?:\s*-\s*\d+)?|\d+)(?:\s*,\s*(?:last(?:\s*-\s*\d+)?|\d+))*)\s*\]")
_ALL_ITEMS = re.compile(r"\[\s*\*\s*\]")
_ALL_MEMBERS = re.compile(r"[.:]\s*\*")
_BARE = re.compile(r"\w+")


@dataclass(frozen=True)
class _Step:
    """One step: a member by name, items by number (from the end below 0), every member, or every item."""

    name: str | None = None
    items: tuple[int, ...] = ()
    every: str = ""


@dataclass(frozen=True)
class PathValues:
    """Values that a path leads to.

    Attributes:
        owners: the number of the document of each, ascending.
        values: the values.
    """

    owners: npt.NDArray[np.int64]
    values: JsonValues


@lru_cache(maxsize=256)
def parse_path(text: str) -> tuple[_Step, ...]:
    """Return the steps of a path.

    Raises:
        ExpressionError: it is no path, or has what is not supported.
    """
    place = _spaces(text, 0)
    steps = []
    if text.startswith("$", place):
        place = _spaces(text, place + 1)
    elif bare := _BARE.match(text, place):
        steps.append(_Step(name=bare[0]))
        place = _spaces(text, bare.end())
    while place < len(text):
        for pattern, step in _STEPS:
            if match := pattern.match(text, place):
                steps.append(step(match))
                place = _spaces(text, match.end())
                break
        else:
            raise ExpressionError(
                f'the path {text!r} is not supported from {text[place:]!r} on: steps are .name, ["name"], '
                "[0], [last], [*] and .*"
            )
    return tuple(steps)


def names_of_path(text: str) -> tuple[str, ...] | None:
    """Return the names of members that a path leads through; None if it is no path, or has other steps."""
    try:
        steps = parse_path(text)
    except ExpressionError:
        return None
    names = tuple(step.name for step in steps if step.name is not None)
    return names if len(names) == len(steps) else None


def _spaces(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _named(match: re.Match[str]) -> _Step:
    quoted = match[match.lastindex or 0]
    return _Step(name=json.loads(quoted, strict=False) if quoted.startswith('"') else quoted)


def _items(match: re.Match[str]) -> _Step:
    numbers = []
    for part in re.sub(r"\s", "", match[1]).split(","):
        numbers.append(-1 - int(part[5:] or 0) if part.startswith("last") else int(part))
    return _Step(items=tuple(numbers))


_STEPS = (
    (_ALL_MEMBERS, lambda _: _Step(every="members")),
    (_NAME, _named),
    (_QUOTED, _named),
    (_ALL_ITEMS, lambda _: _Step(every="items")),
    (_ITEMS, _items),
)


def find(documents: JsonValues, steps: tuple[_Step, ...]) -> PathValues:
    """Return the values at a path, in the order of the documents.

    Raises:
        FormatError, UnsupportedFormatError: a document is damaged, or has what is not known.
    """
    there = np.flatnonzero(documents.kinds != MISSING)
    matches = PathValues(there, documents.take(there))
    for step in steps:
        matches = _step(matches, step)
    return matches


def _step(matches: PathValues, step: _Step) -> PathValues:
    if step.name is not None:
        places, values = member(matches.values, step.name)
        return PathValues(matches.owners[places], values)
    if step.every == "items":
        return _every_item(matches)
    children = matches.values.children(OBJECT if step.every else ARRAY)
    if step.every:
        return PathValues(matches.owners[children.owners], children.values)
    counts = np.zeros(len(matches.values), np.int64)
    np.add.at(counts, children.owners, 1)
    parts = []
    for order, number in enumerate(step.items):
        positions = number if number >= 0 else counts[children.owners] + number
        places = np.flatnonzero(children.ranks == positions)
        parts.append((children.owners[places], np.full(len(places), order), places))
    owners, orders, places = (np.concatenate(column) for column in zip(*parts, strict=True))
    chosen = places[np.lexsort((orders, owners))]
    return PathValues(matches.owners[children.owners[chosen]], children.values.take(chosen))


def _every_item(matches: PathValues) -> PathValues:
    """Return the items of arrays, and all other values as they are."""
    kinds, _ = matches.values.headers()
    children = matches.values.children(ARRAY)
    others = np.flatnonzero(kinds != ARRAY)
    rest = matches.values.take(others)
    owners = np.concatenate([children.owners, others])
    order = np.argsort(owners, kind="stable")
    both = children.values.joined(rest)
    return PathValues(matches.owners[owners[order]], both.take(order))


def member(values: JsonValues, name: str) -> tuple[npt.NDArray[np.int64], JsonValues]:
    """Return the members of a name, and which of the values, objects, they are of."""
    children = values.children(OBJECT)
    places = np.flatnonzero(children.keys.are(name.encode("utf-8", "surrogatepass")))
    return children.owners[places], children.values.take(places)
