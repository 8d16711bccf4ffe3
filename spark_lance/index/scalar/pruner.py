"""Pruning by the scalar indices of a version: a superset of the rows that a condition keeps.

The condition is a tree of "and" and "or". Its other parts go to the indices of the one column that each
reads. The result of an "and" can come from any of its parts, the result of an "or" needs all of them.
Fragments that a segment does not cover stay whole. Nothing here is exact: scans apply the condition to every
row they read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from pyroaring import BitMap

from spark_lance.errors import ExpressionError
from spark_lance.expressions.expressions import Call, Expression
from spark_lance.expressions.predicate import Condition
from spark_lance.expressions.texts import expression_text
from spark_lance.file.base.schema import Field
from spark_lance.index.entries import by_age, segments_of
from spark_lance.index.resolve import RowResolver
from spark_lance.index.row_sets import RowSet
from spark_lance.index.scalar.base import ScalarIndex, united
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.index.scalar.probe import Probe, conjuncts, probe_of
from spark_lance.proto import table_pb2
from spark_lance.table.addresses import row_addresses, rows_by_fragment
from spark_lance.table.manifest import Manifest
from spark_lance.table.reading.pruning import RowSelection
from spark_lance.table.reading.snapshot import Snapshot

__all__ = ["ScalarPruner"]

logger = logging.getLogger(__name__)


class ScalarPruner:
    """Answers for conditions on one version of a table; see `table.reading.pruning.Pruner`.

    Args:
        snapshot: the version.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __getstate__(self) -> dict[str, object]:
        # Open files stay behind.
        return {"_snapshot": self._snapshot}

    @property
    def _manifest(self) -> Manifest:
        return self._snapshot.manifest

    @cached_property
    def resolver(self) -> RowResolver:
        """The lookup of rows that indices return."""
        return RowResolver(self._snapshot)

    @cached_property
    def _indices(self) -> dict[int, list[ScalarIndex]]:
        """Segments by field id; the kinds in the order of `SCALAR_INDICES`, newest first."""
        if not self._manifest.index_section:
            return {}
        fields = {field.id: field for field in self._manifest.schema.walk()}
        result: dict[int, list[ScalarIndex]] = {}
        for kind in SCALAR_INDICES.values():
            for segments in by_age(segments_of(self._snapshot, kind.label, kind.newest)):
                for segment in segments:
                    field = fields.get(segment.entry.fields[0]) if len(segment.entry.fields) == 1 else None
                    if field is not None and segment.covered:
                        result.setdefault(field.id, []).append(kind(segment, field.arrow_type()))
        return result

    def indices_of(self, field: int) -> Sequence[ScalarIndex]:
        """Return the segments over a field, by its id; newest index first."""
        return self._indices.get(field, [])

    def __call__(
        self, condition: Condition, fragments: Sequence[table_pb2.DataFragment]
    ) -> RowSelection | None:
        """Return the rows that a condition may keep, by fragment; None if nothing is known."""
        if not self._indices:
            return None
        present = BitMap(fragment.id for fragment in fragments)
        return self._known_of_all(condition.trees(), present)

    def explain(self, condition: Condition) -> list[tuple[str, str, str]]:
        """Return the parts of a condition that indices may answer: text, name and kind of the index."""
        result = []
        waiting = conjuncts(condition.trees()) if self._indices else []
        while waiting:
            tree = waiting.pop(0)
            if isinstance(tree, Call) and tree.function == "or":
                waiting = [part for argument in tree.arguments for part in conjuncts([argument])] + waiting
                continue
            probe = probe_of(tree)
            fields = None if probe is None else self._manifest.schema.along(probe.path)
            if probe is None or fields is None:
                continue
            for index in self._indices.get(fields[-1].id, ()):
                if index.find(probe) is not None:
                    result.append((_text(tree), index.segment.name, index.name))
                    break
        return result

    def _known_of_all(self, trees: Sequence[Expression], present: BitMap) -> RowSelection | None:
        """Return the rows for which all of some conditions may be true; None if nothing is known."""
        result: RowSelection | None = None
        for part in conjuncts(trees):
            result = _both(result, self._known(part, present))
        return result

    def _known(self, tree: Expression, present: BitMap) -> RowSelection | None:
        """Return the same of one of the `conjuncts`."""
        if isinstance(tree, Call) and tree.function == "or":
            either: dict[int, BitMap | None] = {}
            for part in tree.arguments:
                result = self._known_of_all([part], present)
                if result is None:
                    return None
                either = united(either, result)
            return either
        probe = probe_of(tree)
        fields = None if probe is None else self._manifest.schema.along(probe.path)
        if probe is None or fields is None or fields[-1].id not in self._indices:
            return None
        return self._ask(probe, fields[-1], present)

    def _ask(self, probe: Probe, field: Field, present: BitMap) -> RowSelection | None:
        """Ask the indices of a column; the first kind that knows something answers."""
        by_kind: dict[str, list[ScalarIndex]] = {}
        for index in self._indices[field.id]:
            by_kind.setdefault(index.name + index.segment.name, []).append(index)
        for indices in by_kind.values():
            result = self._ask_segments(probe, indices, present)
            if result is not None:
                return result
        return None

    def _ask_segments(self, probe: Probe, indices: list[ScalarIndex], present: BitMap) -> RowSelection | None:
        result: dict[int, BitMap | None] = {}
        unindexed = BitMap(present)
        for index in indices:
            try:
                with index.segment.decoding():
                    rows = index.find(probe)
            except ExpressionError:
                # The scan says what is wrong with the condition, if it ever computes that part.
                return None
            if rows is None:
                continue
            unindexed -= index.segment.covered
            result = united(result, self._resolved(index, rows))
        if unindexed == present:
            return None
        return {**{f: r for f, r in result.items() if f in present}, **dict.fromkeys(unindexed)}

    def _resolved(self, index: ScalarIndex, rows: RowSet) -> RowSet:
        """Return rows of an index as rows of the fragments that it covers."""
        covered = index.segment.covered
        by_address = index.has_addresses or not self._manifest.uses_stable_row_ids
        if by_address and not self.resolver.has_moves:
            mine = {fragment: here for fragment, here in rows.items() if fragment in covered}
            self.resolver.check(mine)
            return mine
        numbers = [np.empty(0, np.uint64)]
        self.resolver.check(rows if by_address else {})
        for home, here in rows.items():
            if here is None:
                # Every row of a fragment that may have moved: nothing is known.
                return dict.fromkeys(covered)
            numbers.append(row_addresses(home, np.array(here, np.uint64)))
        addresses, counts = self.resolver.addresses(
            np.concatenate(numbers), covered, are_addresses=index.has_addresses
        )
        return rows_by_fragment(addresses[counts])


def _text(tree: Expression) -> str:
    """Return a part of a condition as text, bounds of one value side by side."""
    parts = tree.arguments if isinstance(tree, Call) and tree.function == "and" else (tree,)
    return " && ".join(map(expression_text, parts))


def _both(one: RowSelection | None, other: RowSelection | None) -> RowSelection | None:
    if one is None or other is None:
        return other if one is None else one
    result: dict[int, BitMap | None] = {}
    for fragment in one.keys() & other.keys():
        a, b = one[fragment], other[fragment]
        result[fragment] = b if a is None else a if b is None else a & b
    return result
