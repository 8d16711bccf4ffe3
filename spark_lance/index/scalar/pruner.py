"""Find the rows that can match a condition, from the scalar indexes of a version.

A condition is a tree of "and" and "or". Every other part that reads one column is answered by that column's
indexes. An "and" needs an answer for one part, an "or" needs answers for all parts. All rows of fragments
that no segment covers are returned. Scans apply the condition to the rows they read.

An answer is exact if all its live rows match. An "and" or "or" is exact if all its parts are. An index
answers exactly under three conditions. It compares values with the code that scans use
(`ScalarIndex.is_exact`). Its segments cover every fragment exactly once. It refers to rows by address,
because under a row id it may have the old value of an updated row. The negation of an exact answer is not
exact, because a condition can be null. Only "is null" is never null, so its negation is also exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyroaring import BitMap

from spark_lance.errors import ExpressionError
from spark_lance.expressions.expressions import Call, Expression, expression_text
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Field
from spark_lance.index.base.entries import find_segments, group_by_age
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.column_predicate import ColumnPredicate, conjuncts, parse_column_predicate
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot


@dataclass(frozen=True)
class IndexAnswer:
    """The rows that can match a condition, according to the indexes.

    Attributes:
        rows: includes every live row that matches, and maybe deleted rows.
        exact: whether all live rows in `rows` match.
    """

    rows: RowSet
    exact: bool

    def __and__(self, other: IndexAnswer) -> IndexAnswer:
        return IndexAnswer(self.rows & other.rows, self.exact and other.exact)

    def __or__(self, other: IndexAnswer) -> IndexAnswer:
        return IndexAnswer(self.rows | other.rows, self.exact and other.exact)


class ScalarPruner:
    """Prunes the rows of one table version by its scalar indexes; see `table.reading.pruning.Pruner`.

    Args:
        snapshot: the version.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def __getstate__(self) -> dict[str, object]:
        # Open files cannot be pickled.
        return {"_snapshot": self._snapshot}

    @property
    def _manifest(self) -> Manifest:
        return self._snapshot.manifest

    @cached_property
    def resolver(self) -> RowResolver:
        """Resolves the row numbers that indexes return."""
        return RowResolver(self._snapshot)

    @cached_property
    def _indices(self) -> dict[int, list[ScalarIndex]]:
        """Segments by field id, in the order of `SCALAR_INDICES`, then newest index first."""
        if not self._manifest.index_section:
            return {}
        fields = {field.id: field for field in self._manifest.schema.walk()}
        result: dict[int, list[ScalarIndex]] = {}
        for kind in SCALAR_INDICES.values():
            for segments in group_by_age(find_segments(self._snapshot, kind.label, kind.newest)):
                for segment in segments:
                    field = fields.get(segment.entry.fields[0]) if len(segment.entry.fields) == 1 else None
                    if field is not None and segment.covered:
                        result.setdefault(field.id, []).append(kind(segment, field.arrow_type()))
        return result

    def find_indexes(self, field: int) -> Sequence[ScalarIndex]:
        """Return the segments on a field id, newest index first."""
        return self._indices.get(field, [])

    def __call__(self, condition: Condition, fragments: Sequence[table_pb2.DataFragment]) -> RowSet | None:
        """Return the rows that can match a condition, by fragment; None if no index can answer."""
        answer = self.answer(condition.trees(), fragments)
        return None if answer is None else answer.rows

    def answer(
        self, trees: Sequence[Expression], fragments: Sequence[table_pb2.DataFragment]
    ) -> IndexAnswer | None:
        """Return the rows of the fragments that can match all conditions; None if no index can answer."""
        if not self._indices:
            return None
        return self._query_of_all(trees).answer(_Request(fragments, None))

    def exact_answer(
        self, trees: Sequence[Expression], fragments: Sequence[table_pb2.DataFragment], most_bytes: int
    ) -> IndexAnswer | None:
        """Return the rows that match all conditions, if the answer is exact; None otherwise.

        Args:
            trees: the conditions, bound to the version's schema.
            fragments: the fragments to search.
            most_bytes: approximate limit of index bytes to read for one part of the condition.
        """
        request = _Request(fragments, most_bytes)
        query = self._query_of_all(trees)
        return query.answer(request) if query.can_be_exact(request) else None

    def explain(self, condition: Condition) -> list[tuple[str, str, str]]:
        """Return (condition text, index name, index kind) of each part that an index can answer."""
        result = []
        lookups = self._query_of_all(condition.trees()).lookups() if self._indices else ()
        for lookup in lookups:
            for index in (index for group in lookup.groups for index in group):
                if index.find(lookup.probe) is not None:
                    result.append((_condition_text(lookup.tree), index.segment.name, index.name))
                    break
        return result

    def _query_of_all(self, trees: Sequence[Expression]) -> _Query:
        parts = tuple(self._query(part) for part in conjuncts(trees))
        return parts[0] if len(parts) == 1 else _All(parts)

    def _query(self, tree: Expression) -> _Query:
        """Return the query for one of the `conjuncts` of a condition."""
        if isinstance(tree, Call) and tree.function == "or" and tree.arguments:
            return _Any(tuple(self._query_of_all([argument]) for argument in tree.arguments))
        inner = tree.arguments[0] if isinstance(tree, Call) and tree.function == "not" else None
        if isinstance(inner, Call) and inner.function == "is_null":
            return _NotNull(self._lookup(tree), self._lookup(inner), self._snapshot)
        return self._lookup(tree)

    def _lookup(self, tree: Expression) -> _Query:
        probe = parse_column_predicate(tree)
        fields = None if probe is None else self._manifest.schema.find_path(probe.path)
        if probe is None or fields is None or fields[-1].id not in self._indices:
            return _Unknown()
        groups: dict[str, list[ScalarIndex]] = {}
        for index in self._indices[fields[-1].id]:
            groups.setdefault(index.name + index.segment.name, []).append(index)
        return _Lookup(self, tree, probe, fields[-1], tuple(groups.values()))

    def refers_to_rows(self, indices: Sequence[ScalarIndex]) -> bool:
        """Return whether segments refer to rows by address. A row id may belong to a row updated since."""
        return not self._manifest.uses_stable_row_ids or all(index.has_addresses for index in indices)

    def resolved(self, index: ScalarIndex, rows: RowSet) -> IndexAnswer:
        """Return the addresses of an index's rows in its covered fragments."""
        covered = index.segment.covered
        by_address = index.has_addresses or not self._manifest.uses_stable_row_ids
        if by_address and not self.resolver.has_remaps:
            covered_rows = rows.select_fragments(fragment for fragment in rows if fragment in covered)
            self.resolver.check(covered_rows)
            return IndexAnswer(covered_rows, exact=True)
        self.resolver.check(rows if by_address else RowSet())
        if None in rows.values():
            # The set has a whole fragment, whose rows may have moved: any covered row can match.
            return IndexAnswer(RowSet.from_fragments(covered), exact=False)
        addresses, counts = self.resolver.addresses(
            rows.addresses(), covered, are_addresses=index.has_addresses
        )
        return IndexAnswer(RowSet.from_addresses(addresses[counts]), exact=True)


def covers_once(indices: Sequence[ScalarIndex], fragments: BitMap) -> bool:
    """Return whether segments cover all the fragments, and no fragment twice."""
    covered = BitMap.union(*(index.segment.covered for index in indices))
    return covered >= fragments and sum(len(index.segment.covered) for index in indices) == len(covered)


class _Request:
    """A request to the indexes: the fragments to search, and the byte limit of an exact answer.

    Attributes:
        fragments: the fragments.
        most_bytes: limit of index bytes; None if the answer does not have to be exact.
        present: ids of the fragments.
    """

    def __init__(self, fragments: Sequence[table_pb2.DataFragment], most_bytes: int | None) -> None:
        self.fragments, self.most_bytes = fragments, most_bytes
        self.present = BitMap(fragment.id for fragment in fragments)


class _Query(ABC):
    """A condition, and the indexes that can answer it."""

    @abstractmethod
    def answer(self, request: _Request) -> IndexAnswer | None:
        """Return the rows that can match; None if unknown, or if not exact although the request needs it."""

    def can_be_exact(self, request: _Request) -> bool:
        """Return whether each part of the condition has an index that may answer exactly."""
        return False

    def lookups(self) -> Iterator[_Lookup]:
        """Yield the index lookups, in the order of the condition."""
        yield from ()


class _Unknown(_Query):
    """A part of a condition that no index can answer."""

    def answer(self, request: _Request) -> IndexAnswer | None:
        return None


@dataclass(frozen=True)
class _All(_Query):
    """Conditions that must all be true."""

    parts: tuple[_Query, ...]

    def answer(self, request: _Request) -> IndexAnswer | None:
        result: IndexAnswer | None = None
        complete = True
        for part in self.parts:
            answer = part.answer(request)
            if answer is not None:
                result = answer if result is None else result & answer
            elif request.most_bytes is not None:
                return None
            else:
                complete = False
        return None if result is None else IndexAnswer(result.rows, result.exact and complete)

    def can_be_exact(self, request: _Request) -> bool:
        return bool(self.parts) and all(part.can_be_exact(request) for part in self.parts)

    def lookups(self) -> Iterator[_Lookup]:
        for part in self.parts:
            yield from part.lookups()


@dataclass(frozen=True)
class _Any(_Query):
    """Alternative conditions: one must be true."""

    parts: tuple[_Query, ...]

    def answer(self, request: _Request) -> IndexAnswer | None:
        result: IndexAnswer | None = None
        for part in self.parts:
            answer = part.answer(request)
            if answer is None:
                return None
            result = answer if result is None else result | answer
        return result

    def can_be_exact(self, request: _Request) -> bool:
        return all(part.can_be_exact(request) for part in self.parts)

    def lookups(self) -> Iterator[_Lookup]:
        for part in self.parts:
            yield from part.lookups()


@dataclass(frozen=True)
class _NotNull(_Query):
    """A condition "is not null". Spark adds one to every comparison.

    Attributes:
        direct: lookup of the condition itself.
        nulls: lookup of the null rows. An exact answer is the complement.
        snapshot: the version.
    """

    direct: _Query
    nulls: _Query
    snapshot: Snapshot

    def answer(self, request: _Request) -> IndexAnswer | None:
        if request.most_bytes is None:
            return self.direct.answer(request)
        nulls = self.nulls.answer(request)
        if nulls is None:
            return None
        sizes = {fragment.id: self.snapshot.physical_rows(fragment) for fragment in request.fragments}
        return IndexAnswer(RowSet.from_fragments(sizes).with_sizes(sizes) - nulls.rows, exact=True)

    def can_be_exact(self, request: _Request) -> bool:
        return self.nulls.can_be_exact(request)

    def lookups(self) -> Iterator[_Lookup]:
        return self.direct.lookups()


@dataclass(frozen=True)
class _Lookup(_Query):
    """A condition on one column, and the indexes of this column.

    Attributes:
        pruner: the pruner that opened the indexes.
        tree, probe: the condition, as an expression and as a predicate on the column.
        field: the column.
        groups: the segments of each index, best index first.
    """

    pruner: ScalarPruner
    tree: Expression
    probe: ColumnPredicate
    field: Field
    groups: tuple[Sequence[ScalarIndex], ...]

    def answer(self, request: _Request) -> IndexAnswer | None:
        """Return the answer of the first index that has one."""
        for group in self.groups:
            exact = self._is_exact(group, request)
            if exact or request.most_bytes is None:
                answer = self._query_group(group, request, exact=exact)
                if answer is not None:
                    return answer
        return None

    def can_be_exact(self, request: _Request) -> bool:
        return any(self._is_exact(group, request) for group in self.groups)

    def lookups(self) -> Iterator[_Lookup]:
        yield self

    def _is_exact(self, group: Sequence[ScalarIndex], request: _Request) -> bool:
        # Scans read JSON documents as text, which sorts differently from their bytes.
        return (
            all(index.is_exact for index in group)
            and not self.field.is_json
            and self.pruner.refers_to_rows(group)
            and covers_once(group, request.present)
        )

    def _query_group(
        self, group: Sequence[ScalarIndex], request: _Request, *, exact: bool
    ) -> IndexAnswer | None:
        result = IndexAnswer(RowSet(), exact)
        unknown = BitMap(request.present)
        for index in group:
            try:
                if request.most_bytes is not None:
                    size = index.find_bytes(self.probe)
                    if size is None or size > request.most_bytes:
                        return None
                with index.segment.decoding():
                    rows = index.find(self.probe)
            except ExpressionError:
                # The scan reports the error if it ever evaluates this part of the condition.
                return None
            if rows is not None:
                unknown -= index.segment.covered
                result |= self.pruner.resolved(index, rows)
        if unknown == request.present and request.present:
            return None
        rows = result.rows.select_fragments(
            fragment for fragment in result.rows if fragment in request.present
        )
        answer = IndexAnswer(rows | RowSet.from_fragments(unknown), result.exact and not unknown)
        return answer if answer.exact or request.most_bytes is None else None


def _condition_text(tree: Expression) -> str:
    """Return a part of a condition as text, with the bounds of one value joined by "&&"."""
    parts = tree.arguments if isinstance(tree, Call) and tree.function == "and" else (tree,)
    return " && ".join(map(expression_text, parts))
