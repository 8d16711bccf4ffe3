"""JSON: an index of the values at one path in the documents of a JSON column.

Its files are those of another kind of index over these values. The entry in the manifest has the kind, and
the path (`JsonIndexDetails`). All values are whole numbers, floats, texts or booleans; a document without
one, or with JSON's null, has the key null.

The index answers `json_get_int(j, 'a') > 1`, or nested calls of json_get, if the function returns the type of
the keys: then a call that finds something in the document finds the key. Keys that are numbers are left to
scans, as json_get finds items of arrays by them. (Lance index format, JSON.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from spark_lance.errors import ColumnTypeError, FormatError, OptionError, UnsupportedFormatError
from spark_lance.expressions.expressions import Call, Column, Expression, Literal, replaced, walk
from spark_lance.expressions.json_functions import CANDIDATE, find, is_item_key, names_of_path, parse_path
from spark_lance.file.base.schema import Field
from spark_lance.index.base.building import Numbers, Rows, SegmentTarget
from spark_lance.index.base.entries import Segment
from spark_lance.index.base.files import RowAddressMap
from spark_lance.index.scalar import bitmap, btree, zone_map
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.bitmap import Bitmap
from spark_lance.index.scalar.btree import BTree
from spark_lance.index.scalar.column_predicate import ColumnPredicate, turned
from spark_lance.index.scalar.ngram import NGram
from spark_lance.index.scalar.zone_map import ZoneMap
from spark_lance.jsonb.binary import strings_of
from spark_lance.jsonb.numbers import numbers_of
from spark_lance.jsonb.values import CONTAINER, FALSE, NULL, NUMBER, STRING, TRUE, JsonValues
from spark_lance.proto import index_pb2, table_pb2
from spark_lance.table.format.index_kinds import INDEX_KINDS, label_of_url
from spark_lance.table.format.row_set import RowSet

# Kinds of index over the values -> the file and the column whose type is that of the keys.
_TARGETS: Mapping[type[ScalarIndex], tuple[str, str] | None] = {
    BTree: (btree.DATA_FILE, "values"),
    Bitmap: (bitmap.FILE, "keys"),
    ZoneMap: (zone_map.FILE, "min"),
    NGram: None,
}
_BY_NAME = {kind.name: kind for kind in _TARGETS}
_BY_LABEL = {kind.label: kind for kind in _TARGETS}
_TYPES = {
    "json_get_int": pa.int64(),
    "json_get_float": pa.float64(),
    "json_get_string": pa.string(),
    "json_get_bool": pa.bool_(),
}
# Kind of comparison in another engine -> the type of keys that are all values that it can be.
_CANDIDATES = {"text": pa.string(), "int64": pa.int64(), "double": pa.float64()}
_OTHERS = re.compile(r"true|false|null|nan|inf(inity)?", re.IGNORECASE)
_DOCUMENT, _KEY = Column(("value",)), Column(("key",))


class JsonIndex(ScalarIndex):
    """Rows by what stands at a path."""

    name = "JSON"
    label = "jsonindexdetails"
    type_url = INDEX_KINDS[label].type_url

    def __init__(self, segment: Segment, values: pa.DataType | None = None) -> None:
        """Open a segment, see `ScalarIndex`.

        Raises:
            FormatError: its details are damaged.
        """
        super().__init__(segment, values)
        try:
            details = index_pb2.JsonIndexDetails.FromString(segment.entry.index_details.value)
        except DecodeError as error:
            raise FormatError(f"undecodable details of index {segment.name!r}: {error}") from error
        self._path = str(details.path)
        kind = _BY_LABEL.get(label_of_url(details.target_details.type_url))
        self._target = None if kind is None else kind(segment, None)
        self.can_move = kind is not None and kind.can_move  # type: ignore[misc]

    @property
    def has_addresses(self) -> bool:
        """Whether the index over the values names rows by address."""
        return self._target is not None and self._target.has_addresses

    @classmethod
    def fits(cls, kind: pa.DataType) -> bool:
        """Return whether values may be documents."""
        return bool(pa.types.is_large_binary(kind))

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether a column is one of documents."""
        return field.is_json

    @classmethod
    def extends(cls, entry: table_pb2.IndexMetadata, field: Field) -> bool:
        """Return whether the index over the values is of a kind that is built here."""
        try:
            details = index_pb2.JsonIndexDetails.FromString(entry.index_details.value)
        except DecodeError:
            return False
        return field.is_json and label_of_url(details.target_details.type_url) in _BY_LABEL

    @cached_property
    def _key_type(self) -> pa.DataType | None:
        """The type of the keys; None if they are of no type that a function gives."""
        if self._target is None:
            return None
        place = _TARGETS[type(self._target)]
        if place is None:
            return pa.string()
        kind = self.segment.file(place[0]).column_type(place[1])
        return pa.string() if pa.types.is_large_string(kind) else kind

    @cached_property
    def _names(self) -> tuple[str, ...] | None:
        return names_of_path(self._path)

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return what the index over the values says of a condition on them."""
        if self._target is None or not self._names or any(map(is_item_key, self._names)):
            return None
        tree = self._on_keys(probe.tree)
        if tree is None:
            return None
        return self._target.find(ColumnPredicate(("value",), tree))

    def _on_keys(self, tree: Expression) -> Expression | None:
        """Return a condition on documents as one on the keys; None if it asks for something else of them."""
        on_keys = replaced(tree, self._key_of)
        if _DOCUMENT in walk(on_keys) or _KEY not in walk(on_keys):
            return None
        return turned(replaced(on_keys, lambda part: _DOCUMENT if part == _KEY else None))

    def _key_of(self, node: Expression) -> Expression | None:
        """Return the key in the place of a call that takes just it out of documents."""
        if not isinstance(node, Call):
            return None
        if node.function == CANDIDATE:
            return self._of_candidate(node)
        if _TYPES.get(node.function) == self._key_type:
            return _KEY if _names_of(node) == self._names else None
        return None

    def _of_candidate(self, node: Call) -> Expression:
        """Return what another engine compares, on the keys; the node itself where keys say too little."""
        document, *constants = node.arguments
        path, kind, test, *values = [part.value for part in constants if isinstance(part, Literal)]
        if document != _DOCUMENT or names_of_path(str(path)) != self._names:
            return node
        if _CANDIDATES.get(str(kind)) != self._key_type or (kind == "text" and not _are_words(test, values)):
            return node
        if test == "=":
            return Call("in", (_KEY, *map(Literal, values)))
        return Call(str(test), (_KEY, Literal(values[0])))

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write the index over the values of the path.

        Raises:
            SchemaError: there are values of several types, or of types that have no order.
        """
        path, kind = _choose_kind(target.options)
        steps = parse_path(path)

        def values() -> Iterator[tuple[JsonValues, Numbers, int, Numbers]]:
            for documents, numbers in rows.pieces():
                matches = find(JsonValues.of(documents), steps)
                there = np.flatnonzero(matches.values.kinds != NULL)
                yield (
                    matches.values.take(there),
                    matches.owners[there].astype(np.uint64),
                    len(documents),
                    numbers,
                )

        key_type = _one_type(path, (matches for matches, *_ in values()))
        if not kind.fits(key_type):
            raise ColumnTypeError(f"values at {path!r} are {key_type}: that cannot have an index {kind.name}")

        def pieces() -> Iterator[tuple[pa.Array, Numbers]]:
            for matches, places, count, numbers in values():
                picks = np.zeros(count, np.int64)
                picks[places.astype(np.int64)] = np.arange(len(places))
                missing = np.ones(count, np.bool_)
                missing[places.astype(np.int64)] = False
                yield _keys(matches, key_type).take(pa.array(picks, mask=missing)), numbers

        return kind.build(Rows(pieces, key_type, rows.fragments), target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Write the index over the values with the addresses that its rows have now."""
        if self._target is None:
            raise UnsupportedFormatError(f"moving the rows of a JSON index of another kind at {self._path!r}")
        return self._target.move(target, remap)

    def options(self) -> dict[str, Any]:
        """Return the path and the kind of index over its values."""
        if self._target is None:
            raise UnsupportedFormatError(
                f"the JSON index {self.segment.name!r} is of a kind that is not known"
            )
        return {"path": self._path, "target_index_type": self._target.name.lower()}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuse options that do not exist or cannot be used."""
        _choose_kind(options)

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return the path and the details of the index over its values."""
        path, kind = _choose_kind(options)
        details = index_pb2.JsonIndexDetails(path=path)
        details.target_details.type_url = kind.type_url
        details.target_details.value = kind.details({})
        return details.SerializeToString()

    @classmethod
    def built_by_address(cls, stable_row_ids: bool, options: Mapping[str, Any]) -> bool:
        """Return whether rows are named by address when a segment is built.

        Raises:
            OptionError: no reader would know what the numbers are, as the format has no place to tell.
        """
        _, kind = _choose_kind(options)
        if stable_row_ids and kind is BTree:
            raise OptionError(
                "a JSON index of target_index_type btree cannot tell row ids from addresses, so tables with "
                "stable row ids have none: use bitmap or zonemap"
            )
        return kind.addresses_when(0)


def _choose_kind(options: Mapping[str, Any]) -> tuple[str, type[ScalarIndex]]:
    unknown = sorted(set(options) - {"path", "target_index_type"})
    if unknown or "path" not in options:
        raise OptionError(
            f"a JSON index takes the options path and target_index_type, not {', '.join(unknown) or 'none'}"
        )
    path = str(options["path"])
    names = names_of_path(path)
    if not names:
        raise OptionError(f"the path {path!r} of a JSON index must be names of members, such as $.a.b")
    if all(re.fullmatch(r"\w+", part) for part in names):
        # By other spellings other engines do not find the index.
        path = ".".join(names)
    name = str(options.get("target_index_type", "btree")).upper().replace("_", "")
    if name not in _BY_NAME:
        raise OptionError(
            f"a JSON index has no target_index_type {options['target_index_type']!r}; there are "
            f"{', '.join(kind.lower() for kind in _BY_NAME)}"
        )
    return path, _BY_NAME[name]


def _one_type(path: str, parts: Iterator[JsonValues]) -> pa.DataType:
    """Return the type of all values at a path; text if there are none.

    Raises:
        SchemaError: they are of several types, or arrays or objects, or numbers beyond 64 bits.
    """
    type_names: set[str] = set()
    for values in parts:
        kinds = set(np.unique(values.kinds).tolist())
        type_names |= {type_name for kind, type_name in _TOLD.items() if kind in kinds}
        if NUMBER in kinds:
            numbers = numbers_of(values.take(np.flatnonzero(values.kinds == NUMBER)))
            whole = np.isin(numbers.which, ("i", "u"))
            type_names |= {"whole numbers"} if bool(whole.any()) else set()
            type_names |= {"floats"} if not bool(whole.all()) else set()
            if bool((numbers.as_integers()[1] & whole).any()):
                type_names.add("numbers beyond 64 bits")
    if not type_names:
        return pa.string()
    if len(type_names) > 1 or not type_names <= _KEY_TYPES.keys():
        raise ColumnTypeError(
            f"values at {path!r} are {' and '.join(sorted(type_names))}: a JSON index needs whole numbers, "
            "floats, texts or booleans"
        )
    return _KEY_TYPES[type_names.pop()]


_TOLD = {STRING: "texts", TRUE: "booleans", FALSE: "booleans", CONTAINER: "arrays or objects"}
_KEY_TYPES = {
    "texts": pa.string(),
    "booleans": pa.bool_(),
    "whole numbers": pa.int64(),
    "floats": pa.float64(),
}


def _keys(values: JsonValues, kind: pa.DataType) -> pa.Array:
    """Return values that are all of one type."""
    if pa.types.is_string(kind):
        return strings_of(values)
    if pa.types.is_boolean(kind):
        return pa.array(values.kinds == TRUE)
    numbers = numbers_of(values)
    return pa.array(numbers.as_doubles() if pa.types.is_floating(kind) else numbers.as_integers()[0])


def _are_words(test: Any, texts: list[Any]) -> bool:
    """Whether only strings can be equal to texts, and no numbers or others as they may be written."""
    return test == "=" and all(re.match(r"[^\W\d]", text) and not _OTHERS.fullmatch(text) for text in texts)


def _names_of(node: Expression) -> tuple[str, ...] | None:
    """Return the keys of nested calls that begin at the document; None for anything else."""
    if node == _DOCUMENT:
        return ()
    if not isinstance(node, Call) or not (node.function in _TYPES or node.function == "json_get"):
        return None
    inner, key = node.arguments
    before = _names_of(inner) if not isinstance(inner, Call) or inner.function == "json_get" else None
    if before is None or not isinstance(key, Literal) or not isinstance(key.value, str):
        return None
    return (*before, key.value)
