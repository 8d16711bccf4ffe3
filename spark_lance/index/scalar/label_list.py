"""LABEL_LIST: for each list element, the set of rows whose list contains it.

    bitmap_page_lookup.lance    as BITMAP; keys are the elements; key null has the rows with a null element
                                metadata `lance:label_list_nulls` number of a buffer with the rows whose list
                                is null (since version 1)

Rows with empty lists are in no set. Exact for array_has, array_has_any and array_has_all. (Lance index
format, label list.)
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.expressions.expressions import Call, Column, Literal
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.base.files import RowAddressMap
from spark_lance.index.base.row_sets import pack_sorted, row_numbers
from spark_lance.index.scalar.base import remap_sets
from spark_lance.index.scalar.bitmap import FILE, Bitmap, SetsByKey, move_sets, read_sets, write_sets
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet

_NULLS = "lance:label_list_nulls"


class LabelList(SetsByKey):
    """Label list index: rows by list element."""

    name = "LABEL_LIST"
    label = "labellistindexdetails"
    type_url = INDEX_KINDS[label].type_url
    newest = 1
    can_move = True

    @classmethod
    def index_version(cls, stable_row_ids: bool) -> int:
        """Return 1, the first version that stores null lists."""
        return 1

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values are lists whose elements can be compared for equality."""
        return _is_list(kind) and Bitmap.supports_type(kind.value_type)

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return exactly the rows whose list contains an element, any of several, or all of them."""
        if probe.operator not in ("array_has", "array_has_any", "array_has_all") or not probe.literals:
            return None
        if any(literal is None for literal in probe.literals):
            return None
        sets = [self._element_rows(literal) for literal in probe.literals]
        if probe.operator == "array_has_all":
            return reduce(and_, sets)
        return reduce(or_, sets)

    def _element_rows(self, element: Any) -> RowSet:
        same = ColumnPredicate(probe_path, Call("=", (Column(("value",)), Literal(element))))
        return read_sets(self._file, np.flatnonzero(same.evaluate(self._keys)))

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write one set of rows per element; return file name -> size in bytes."""
        elements: list[pa.Array] = []
        owners = [np.empty(0, np.uint64)]
        nulls = [np.empty(0, np.uint64)]
        for lists, numbers in rows.pieces():
            flat = pc.list_flatten(lists)
            elements.append(flat)
            owners.append(numbers[pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)])
            nulls.append(numbers[lists.is_null().to_numpy(zero_copy_only=False)])
        values = pa.chunked_array(elements, rows.kind.value_type)
        absent = pack_sorted(np.sort(np.concatenate(nulls)))
        notes = {_NULLS: f"buffer:{absent.hex()}"}
        return {FILE: write_sets(values, np.concatenate(owners), target, notes)}

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite the sets of elements and null lists with current addresses."""
        notes = {}
        if _NULLS in self._file.metadata:
            absent = row_numbers(self._file.buffer(self._file.parsed(_NULLS, int)), remap.existing_rows)
            notes[_NULLS] = pack_sorted(remap_sets([absent], remap)[0])
        return {FILE: move_sets(self._file, target, remap, notes)}


probe_path = ("value",)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
