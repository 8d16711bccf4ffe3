"""JSON: an index of the values at one path in the documents of a JSON column.

The files are the files of another index kind (the target) over these values. The manifest entry has the
target kind and the path (`JsonIndexDetails`). All values are integers, floats, strings or booleans. A
document without a value at the path, or with JSON null there, has the key null.

The index answers `json_get_int(j, 'a') > 1`, or nested calls of json_get, if the function returns the type of
the keys, because then the function returns the key. Path names that are numbers are left to scans, because
json_get uses them as array positions. (Lance index format, JSON.)
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
from spark_lance.index.scalar.column_predicate import ColumnPredicate, column_first
from spark_lance.index.scalar.ngram import NGram
from spark_lance.index.scalar.zone_map import ZoneMap
from spark_lance.jsonb.binary import decode_strings
from spark_lance.jsonb.numbers import decode_numbers
from spark_lance.jsonb.values import CONTAINER, FALSE, NULL, NUMBER, STRING, TRUE, JsonValues
from spark_lance.proto import index_pb2, table_pb2
from spark_lance.table.format.index_kinds import INDEX_KINDS, label_of_url
from spark_lance.table.format.row_set import RowSet

# Target index kind -> (file, column) that has the type of the keys.
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
# Comparison kind of another engine -> the key type that covers all its values.
_CANDIDATES = {"text": pa.string(), "int64": pa.int64(), "double": pa.float64()}
_NON_STRING_WORDS = re.compile(r"true|false|null|nan|inf(inity)?", re.IGNORECASE)
_DOCUMENT, _KEY = Column(("value",)), Column(("key",))


class JsonIndex(ScalarIndex):
    """JSON index: rows by the value at a path."""

    name = "JSON"
    label = "jsonindexdetails"
    type_url = INDEX_KINDS[label].type_url

    def __init__(self, segment: Segment, values: pa.DataType | None = None) -> None:
        """Open a segment, see `ScalarIndex`.

        Raises:
            FormatError: the details of the index are damaged.
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
        """Whether the target index refers to rows by address."""
        return self._target is not None and self._target.has_addresses

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values can be JSON documents."""
        return bool(pa.types.is_large_binary(kind))

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether a column has JSON documents."""
        return field.is_json

    @classmethod
    def extends(cls, entry: table_pb2.IndexMetadata, field: Field) -> bool:
        """Return whether we support the target index kind."""
        try:
            details = index_pb2.JsonIndexDetails.FromString(entry.index_details.value)
        except DecodeError:
            return False
        return field.is_json and label_of_url(details.target_details.type_url) in _BY_LABEL

    @cached_property
    def _key_type(self) -> pa.DataType | None:
        """The type of the keys; None if the target kind is unknown."""
        if self._target is None:
            return None
        file_and_column = _TARGETS[type(self._target)]
        if file_and_column is None:
            return pa.string()
        kind = self.segment.file(file_and_column[0]).column_type(file_and_column[1])
        return pa.string() if pa.types.is_large_string(kind) else kind

    @cached_property
    def _names(self) -> tuple[str, ...] | None:
        return names_of_path(self._path)

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return the answer of the target index; None if the condition does not read this path."""
        if self._target is None or not self._names or any(map(is_item_key, self._names)):
            return None
        tree = self._rewrite_to_keys(probe.tree)
        if tree is None:
            return None
        return self._target.find(ColumnPredicate(("value",), tree))

    def _rewrite_to_keys(self, tree: Expression) -> Expression | None:
        """Rewrite a condition on documents to a condition on the keys; None if it reads anything else."""
        on_keys = replaced(tree, self._key_of)
        if _DOCUMENT in walk(on_keys) or _KEY not in walk(on_keys):
            return None
        return column_first(replaced(on_keys, lambda part: _DOCUMENT if part == _KEY else None))

    def _key_of(self, node: Expression) -> Expression | None:
        """Return the key for a call that extracts exactly this path; None for other nodes."""
        if not isinstance(node, Call):
            return None
        if node.function == CANDIDATE:
            return self._candidate_condition(node)
        if _TYPES.get(node.function) == self._key_type:
            return _KEY if _member_names(node) == self._names else None
        return None

    def _candidate_condition(self, node: Call) -> Expression:
        """Rewrite another engine's comparison to the keys; return the node itself if that is not possible."""
        document, *constants = node.arguments
        path, kind, test, *values = [part.value for part in constants if isinstance(part, Literal)]
        if document != _DOCUMENT or names_of_path(str(path)) != self._names:
            return node
        if _CANDIDATES.get(str(kind)) != self._key_type or (
            kind == "text" and not _are_plain_words(test, values)
        ):
            return node
        if test == "=":
            return Call("in", (_KEY, *map(Literal, values)))
        return Call(str(test), (_KEY, Literal(values[0])))

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write the target index over the values at the path; return file name -> size in bytes.

        Raises:
            SchemaError: the values have several types, or a type that cannot be indexed.
        """
        path, kind = _choose_kind(target.options)
        steps = parse_path(path)

        def values() -> Iterator[tuple[JsonValues, Numbers, int, Numbers]]:
            for documents, numbers in rows.pieces():
                matches = find(JsonValues.of(documents), steps)
                non_null = np.flatnonzero(matches.values.kinds != NULL)
                yield (
                    matches.values.take(non_null),
                    matches.owners[non_null].astype(np.uint64),
                    len(documents),
                    numbers,
                )

        key_type = _value_type(path, (matches for matches, *_ in values()))
        if not kind.supports_type(key_type):
            raise ColumnTypeError(f"values at {path!r} are {key_type}: that cannot have an index {kind.name}")

        def pieces() -> Iterator[tuple[pa.Array, Numbers]]:
            for matches, places, count, numbers in values():
                value_indices = np.zeros(count, np.int64)
                value_indices[places.astype(np.int64)] = np.arange(len(places))
                missing = np.ones(count, np.bool_)
                missing[places.astype(np.int64)] = False
                yield _key_array(matches, key_type).take(pa.array(value_indices, mask=missing)), numbers

        return kind.build(Rows(pieces, key_type, rows.fragments), target)

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite the target index with current addresses."""
        if self._target is None:
            raise UnsupportedFormatError(f"moving the rows of a JSON index of another kind at {self._path!r}")
        return self._target.move(target, remap)

    def options(self) -> dict[str, Any]:
        """Return the path and the target index kind."""
        if self._target is None:
            raise UnsupportedFormatError(
                f"the JSON index {self.segment.name!r} is of a kind that is not known"
            )
        return {"path": self._path, "target_index_type": self._target.name.lower()}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Check that options exist and have valid values."""
        _choose_kind(options)

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return the encoded details: the path and the details of the target index."""
        path, kind = _choose_kind(options)
        details = index_pb2.JsonIndexDetails(path=path)
        details.target_details.type_url = kind.type_url
        details.target_details.value = kind.details({})
        return details.SerializeToString()

    @classmethod
    def built_by_address(cls, stable_row_ids: bool, options: Mapping[str, Any]) -> bool:
        """Return whether a new segment refers to rows by address.

        Raises:
            OptionError: the target kind cannot record whether its row numbers are ids or addresses.
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
        # Other engines find the index only by this spelling of the path.
        path = ".".join(names)
    name = str(options.get("target_index_type", "btree")).upper().replace("_", "")
    if name not in _BY_NAME:
        raise OptionError(
            f"a JSON index has no target_index_type {options['target_index_type']!r}; there are "
            f"{', '.join(kind.lower() for kind in _BY_NAME)}"
        )
    return path, _BY_NAME[name]


def _value_type(path: str, parts: Iterator[JsonValues]) -> pa.DataType:
    """Return the type of all values at a path; string if there are none.

    Raises:
        SchemaError: there are several types, arrays, objects, or numbers beyond 64 bits.
    """
    type_names: set[str] = set()
    for values in parts:
        kinds = set(np.unique(values.kinds).tolist())
        type_names |= {type_name for kind, type_name in _TYPE_NAMES.items() if kind in kinds}
        if NUMBER in kinds:
            numbers = decode_numbers(values.take(np.flatnonzero(values.kinds == NUMBER)))
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


_TYPE_NAMES = {STRING: "texts", TRUE: "booleans", FALSE: "booleans", CONTAINER: "arrays or objects"}
_KEY_TYPES = {
    "texts": pa.string(),
    "booleans": pa.bool_(),
    "whole numbers": pa.int64(),
    "floats": pa.float64(),
}


def _key_array(values: JsonValues, kind: pa.DataType) -> pa.Array:
    """Return JSON values of a single type as an Arrow array."""
    if pa.types.is_string(kind):
        return decode_strings(values)
    if pa.types.is_boolean(kind):
        return pa.array(values.kinds == TRUE)
    numbers = decode_numbers(values)
    return pa.array(numbers.as_doubles() if pa.types.is_floating(kind) else numbers.as_integers()[0])


def _are_plain_words(test: Any, texts: list[Any]) -> bool:
    """Return whether only JSON strings can equal these texts: not numbers, booleans, null or NaN."""
    return test == "=" and all(
        re.match(r"[^\W\d]", text) and not _NON_STRING_WORDS.fullmatch(text) for text in texts
    )


def _member_names(node: Expression) -> tuple[str, ...] | None:
    """Return the member names of nested json_get calls on the document; None for other expressions."""
    if node == _DOCUMENT:
        return ()
    if not isinstance(node, Call) or not (node.function in _TYPES or node.function == "json_get"):
        return None
    inner, key = node.arguments
    before = _member_names(inner) if not isinstance(inner, Call) or inner.function == "json_get" else None
    if before is None or not isinstance(key, Literal) or not isinstance(key.value, str):
        return None
    return (*before, key.value)
