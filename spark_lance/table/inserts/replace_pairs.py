"""Find the rows of a table to replace by a condition on pairs of a table row and a new row.

The condition qualifies columns with aliases: `t.id = s.id AND t.day >= s.day`. Equalities of two columns of
the same type limit the pairs that are compared; without an equality, every pair is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import pick_rows
from spark_lance.errors import ExpressionError, suggestion
from spark_lance.expressions.expressions import Call, Cast, Column, Expression, walk
from spark_lance.expressions.predicate import Condition, compile_tree
from spark_lance.expressions.sql import as_condition, parse_sql
from spark_lance.expressions.values import plain
from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.row_set import Offsets, RowSet, address_offsets
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

Int64Array = npt.NDArray[np.int64]

_WINDOW_BYTES = 16 << 20
_MAX_PAIRS = 1 << 20
_QUALIFIED_PARTS = 2


@dataclass(frozen=True)
class PairMatch:
    """Finds the rows of a table that a condition matches with a new row. Can be pickled.

    Attributes:
        text: the condition.
        target: the alias of the table in the condition.
        columns: the columns of the new rows in the condition.
        table_columns: the columns of the table in the condition.
        equal: pairs (column of the table, column of the new rows) that must be equal.
    """

    text: str
    target: str
    columns: tuple[str, ...]
    table_columns: tuple[str, ...]
    equal: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, text: str, target: str, table: Schema, source: Sequence[str]) -> PairMatch:
        """Compile a condition for a table and the columns of new rows.

        Args:
            text: the condition, in SQL.
            target: the alias of the table; every other column must have one other alias.
            table: the table's schema.
            source: the names of the columns of the new rows.

        Raises:
            ExpressionError: the condition is not valid, or a column has no alias or a third alias.
        """
        tree = _parse(text)
        sides: dict[bool, dict[str, None]] = {True: {}, False: {}}
        others: set[str] = set()
        for node in walk(tree):
            if not isinstance(node, Column):
                continue
            is_table = node.path[0].lower() == target.lower()
            if len(node.path) < _QUALIFIED_PARTS or (not is_table and others - {node.path[0].lower()}):
                raise ExpressionError(
                    f"{text}: write each column with the alias of its side, such as {target}.id = s.id"
                )
            if not is_table:
                others.add(node.path[0].lower())
            names = [field.name for field in table.fields] if is_table else list(source)
            sides[is_table][_resolve_name(node.path[1], names, text)] = None
        used = [table.field(name) for names in sides.values() for name in names]
        if not used or any(node.is_blob for field in used for node in field.walk()):
            raise ExpressionError(f"{text}: write a condition on columns, and not on blobs")
        equal = tuple(_find_equalities(tree, target, table, source, text))
        match = cls(text, target, tuple(sides[False]), tuple(sides[True]), equal)
        match.compile(table)
        return match

    def compile(self, table: Schema) -> Condition:
        """Return the condition over two struct columns, "target" and "source".

        Raises:
            ExpressionError: types cannot be compared.
        """
        used = {*self.columns, *self.table_columns}
        types = {name: table.field(name).as_descriptor().arrow_field() for name in used}
        sides = (("target", self.table_columns), ("source", self.columns))
        fields = [
            (side, pa.struct([_plain_field(types[name]) for name in names])) for side, names in sides if names
        ]
        tree = _rename_columns(_parse(self.text), self)
        return compile_tree(as_condition(tree), pa.schema(fields))

    def read_rows(self, at: Snapshot, fragments: Sequence[table_pb2.DataFragment]) -> pa.Table:
        """Return the columns of new rows that the condition refers to, and their addresses."""
        scan = at.scan([*self.columns, ROW_ADDRESS], fragments=fragments)
        return pa.concat_tables([scan.arrow_schema.empty_table(), *scan.tables()])

    def find(self, at: Snapshot, source: pa.Table) -> RowChanges:
        """Return the rows of a version that the condition matches with a row of `source`."""
        rows: dict[int, Offsets] = {}
        condition = self.compile(at.schema)
        if not source.num_rows:
            return RowChanges(at, RowSet.from_offsets(rows))
        index = KeyIndex([source[source_column] for _, source_column in self.equal]) if self.equal else None
        for task in at.scan([*self.table_columns, ROW_ADDRESS]).tasks():
            parts = []
            for table in task.tables(_WINDOW_BYTES):
                places = self._matching_rows(table, source, index, condition)
                parts.append(address_offsets(table[ROW_ADDRESS].to_numpy()[places]))
            offsets = np.unique(np.concatenate([np.empty(0, np.uint32), *parts]))
            if len(offsets):
                rows[task.message.id] = offsets
        return RowChanges(at, RowSet.from_offsets(rows))

    def _matching_rows(
        self, table: pa.Table, source: pa.Table, index: KeyIndex | None, condition: Condition
    ) -> Int64Array:
        """Return the positions in `table` of the rows that match a row of `source`, ascending."""
        matches = [np.empty(0, np.int64)]
        if index is None:
            pairs = _all_pairs(table.num_rows, source.num_rows)
        else:
            pairs = _split_pairs(
                *index.pairs(index.lookup([table[table_column] for table_column, _ in self.equal]))
            )
        for positions, rows in pairs:
            sides = {
                "target": _struct_of_rows(table, self.table_columns, positions),
                "source": _struct_of_rows(source, self.columns, rows),
            }
            columns = {name: column for name, column in sides.items() if column is not None}
            mask = condition.mask(pa.table(columns)).fill_null(False).to_numpy()
            matches.append(np.unique(positions[mask]))
        return np.unique(np.concatenate(matches))


def _parse(text: str) -> Expression:
    return parse_sql(text)


def _resolve_name(name: str, names: Sequence[str], text: str) -> str:
    alike = (
        [name] if name in names else [candidate for candidate in names if candidate.lower() == name.lower()]
    )
    if len(alike) != 1:
        raise ExpressionError(
            f"{text}: there is no column {name!r}; there are {', '.join(names)}{suggestion(name, names)}"
        )
    return alike[0]


def _find_equalities(
    tree: Expression, target: str, table: Schema, source: Sequence[str], text: str
) -> Iterator[tuple[str, str]]:
    """Yield pairs (column of the table, column of the new rows) that must be equal."""
    if not isinstance(tree, Call):
        return
    if tree.function == "and":
        for part in tree.arguments:
            yield from _find_equalities(part, target, table, source, text)
    columns = [
        part for part in tree.arguments if isinstance(part, Column) and len(part.path) == _QUALIFIED_PARTS
    ]
    if tree.function != "=" or len(columns) < _QUALIFIED_PARTS:
        return
    columns.sort(key=lambda column: column.path[0].lower() != target.lower())
    table_column, source_column = columns
    if table_column.path[0].lower() != target.lower() or source_column.path[0].lower() == target.lower():
        return
    pair = (
        _resolve_name(table_column.path[1], [field.name for field in table.fields], text),
        _resolve_name(source_column.path[1], source, text),
    )
    kinds = [table.field(name).arrow_type() for name in pair]
    if kinds[0] == kinds[1] and not pa.types.is_nested(kinds[0]) and not pa.types.is_floating(kinds[0]):
        yield pair


def _rename_columns(tree: Expression, match: PairMatch) -> Expression:
    """Return a condition whose columns are fields of the structs "target" and "source"."""
    if isinstance(tree, Column):
        is_table = tree.path[0].lower() == match.target.lower()
        names = match.table_columns if is_table else match.columns
        name = _resolve_name(tree.path[1], names, match.text)
        return Column(("target" if is_table else "source", name, *tree.path[2:]))
    if isinstance(tree, Call):
        return Call(tree.function, tuple(_rename_columns(part, match) for part in tree.arguments))
    if isinstance(tree, Cast):
        return Cast(_rename_columns(tree.argument, match), tree.type, tree.or_null)
    return tree


def _all_pairs(count: int, others: int) -> Iterator[tuple[Int64Array, Int64Array]]:
    step = max(1, _MAX_PAIRS // others)
    for start in range(0, count, step):
        positions = np.arange(start, min(start + step, count))
        yield np.repeat(positions, others), np.tile(np.arange(others), len(positions))


def _split_pairs(positions: Int64Array, rows: Int64Array) -> Iterator[tuple[Int64Array, Int64Array]]:
    for start in range(0, len(positions), _MAX_PAIRS):
        yield positions[start : start + _MAX_PAIRS], rows[start : start + _MAX_PAIRS]


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain(pa.chunked_array([], field.type)).type)


def _struct_of_rows(table: pa.Table, names: Sequence[str], rows: Int64Array) -> pa.Array | None:
    """Return columns of some rows as one struct column; None without columns."""
    if not names:
        return None
    selection = pick_rows(table.select(list(names)), rows)
    columns = [plain(column).combine_chunks() for column in selection.columns]
    return pa.StructArray.from_arrays(columns, fields=[_plain_field(field) for field in selection.schema])
