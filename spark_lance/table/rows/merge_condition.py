"""Conditions of a merge: on pairs of a source row and a table row, named source.x and target.x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import pick_rows
from spark_lance.errors import ExpressionError
from spark_lance.expressions.predicate import Condition, Predicate, compile_predicate
from spark_lance.expressions.values import plain

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MergeCondition:
    """A condition fitted to a source and a table.

    Attributes:
        condition: over two struct columns, "source" and "target", of the columns that it names.
        source_columns, target_columns: these columns.
    """

    condition: Condition
    source_columns: tuple[str, ...]
    target_columns: tuple[str, ...]

    @classmethod
    def compile(cls, predicate: Predicate, source: pa.Schema, target: pa.Schema) -> MergeCondition:
        """Fit a condition.

        Raises:
            ExpressionError: it is not a condition on these columns.
        """
        compile_predicate(predicate, _pairs_schema(source, target))
        # A condition tells only the structs that it reads; so it is tried without each of their fields.
        named = []
        for side in (source, target):
            needed = []
            for place, column in enumerate(side):
                fewer = side.remove(place)
                schemas = (fewer, target) if side is source else (source, fewer)
                if not _fits(predicate, _pairs_schema(*schemas)):
                    needed.append(column)
            named.append(pa.schema(needed))
        condition = compile_predicate(predicate, _pairs_schema(*named))
        return cls(condition, tuple(named[0].names), tuple(named[1].names))

    def mask(
        self, target: pa.Table, places: Int64Array, source: pa.Table, rows: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Return for each pair of a target row and a source row whether the condition is true.

        Raises:
            ExpressionError: it cannot be computed.
        """
        sides = {
            "source": _struct(source, self.source_columns, rows),
            "target": _struct(target, self.target_columns, places),
        }
        values = self.condition.mask(pa.table(sides)).fill_null(False)
        keep: npt.NDArray[np.bool_] = values.to_numpy()
        return keep


def _pairs_schema(source: pa.Schema, target: pa.Schema) -> pa.Schema:
    sides = (("source", source), ("target", target))
    return pa.schema([(name, pa.struct([_plain_field(field) for field in side])) for name, side in sides])


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain(pa.chunked_array([], field.type)).type)


def _fits(predicate: Predicate, schema: pa.Schema) -> bool:
    try:
        compile_predicate(predicate, schema)
    except ExpressionError:
        return False
    return True


def _struct(table: pa.Table, names: Sequence[str], rows: Int64Array) -> pa.Array:
    """Return columns of some rows as one struct column."""
    if not names:
        return pa.StructArray.from_buffers(pa.struct([]), len(rows), [None], children=[])
    picked = pick_rows(table.select(list(names)), rows)
    # Dictionaries of several chunks cannot always be united.
    columns = [plain(column).combine_chunks() for column in picked.columns]
    return pa.StructArray.from_arrays(columns, fields=[_plain_field(field) for field in picked.schema])
