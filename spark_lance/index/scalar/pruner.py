"""The rows for which a condition can be true, from the scalar indices of a version.

The condition is a tree of "and" and "or". Its other parts go to the indices of the one column that each
reads. The answer of an "and" can come from any of its parts, the answer of an "or" needs all of them.
Fragments that a segment does not cover stay whole, and scans apply the condition to the rows they read.

An answer is exact if the condition is true for all of its live rows. An "and" or "or" is exact if all of
its parts are. The answer of an index is exact under three conditions. It compares the values of the rows by
the code of scans (`ScalarIndex.is_exact`). It covers all fragments, each of them once. It refers to rows by
address: under the id of a changed row an index may have its old value. The negation of an exact answer is
not exact, because a condition can be null. Only "is null" is never null, so its negation is exact, too.
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
from spark_lance.index.base.entries import by_age, segments_of
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.column_predicate import ColumnPredicate, column_predicate_of, conjuncts
from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot


@dataclass(frozen=True)
class IndexAnswer:
    """The rows for which a condition can be true, as far as indices know.

    Attributes:
        rows: every live row for which it is true; deleted rows may be among them.
        exact: whether it is true for all live rows among these.
    """

    rows: RowSet
    exact: bool

    def __and__(self, other: IndexAnswer) -> IndexAnswer:
        return IndexAnswer(self.rows & other.rows, self.exact and other.exact)

    def __or__(self, other: IndexAnswer) -> IndexAnswer:
        return IndexAnswer(self.rows | other.rows, self.exact and other.exact)


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

    def __call__(self, condition: Condition, fragments: Sequence[table_pb2.DataFragment]) -> RowSet | None:
        """Return the rows that a condition may keep, by fragment; None if nothing is known."""
        answer = self.answer(condition.trees(), fragments)
        return None if answer is None else answer.rows

    def answer(
        self, trees: Sequence[Expression], fragments: Sequence[table_pb2.DataFragment]
    ) -> IndexAnswer | None:
        """Return the rows of fragments for which all of some conditions can be true; None if unknown."""
        if not self._indices:
            return None
        return self._query_of_all(trees).answer(_Request(fragments, None))

    def exact_answer(
        self, trees: Sequence[Expression], fragments: Sequence[table_pb2.DataFragment], most_bytes: int
    ) -> IndexAnswer | None:
        """Return the same if it is exact, None otherwise.

        Args:
            trees: the conditions, fitted to the version.
            fragments: the fragments whose rows are wanted.
            most_bytes: about the most bytes that may be read of the index for one part of the condition.
        """
        request = _Request(fragments, most_bytes)
        query = self._query_of_all(trees)
        return query.answer(request) if query.can_be_exact(request) else None

    def explain(self, condition: Condition) -> list[tuple[str, str, str]]:
        """Return the parts of a condition that indices may answer: text, name and kind of the index."""
        result = []
        lookups = self._query_of_all(condition.trees()).lookups() if self._indices else ()
        for lookup in lookups:
            for index in (index for group in lookup.groups for index in group):
                if index.find(lookup.probe) is not None:
                    result.append((_text(lookup.tree), index.segment.name, index.name))
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
        probe = column_predicate_of(tree)
        fields = None if probe is None else self._manifest.schema.along(probe.path)
        if probe is None or fields is None or fields[-1].id not in self._indices:
            return _Unknown()
        groups: dict[str, list[ScalarIndex]] = {}
        for index in self._indices[fields[-1].id]:
            groups.setdefault(index.name + index.segment.name, []).append(index)
        return _Lookup(self, tree, probe, fields[-1], tuple(groups.values()))

    def refers_to_rows(self, indices: Sequence[ScalarIndex]) -> bool:
        """Whether segments refer to rows of this version, not to ids of rows that were changed since."""
        return not self._manifest.uses_stable_row_ids or all(index.has_addresses for index in indices)

    def resolved(self, index: ScalarIndex, rows: RowSet) -> IndexAnswer:
        """Return rows of an index as rows of the fragments that it covers, exact unless they are unknown."""
        covered = index.segment.covered
        by_address = index.has_addresses or not self._manifest.uses_stable_row_ids
        if by_address and not self.resolver.has_remaps:
            mine = rows.only(fragment for fragment in rows if fragment in covered)
            self.resolver.check(mine)
            return IndexAnswer(mine, exact=True)
        self.resolver.check(rows if by_address else RowSet())
        if None in rows.values():
            # Every row of a fragment that may have moved: nothing is known.
            return IndexAnswer(RowSet.whole(covered), exact=False)
        addresses, counts = self.resolver.addresses(
            rows.addresses(), covered, are_addresses=index.has_addresses
        )
        return IndexAnswer(RowSet.from_addresses(addresses[counts]), exact=True)


def covers_once(indices: Sequence[ScalarIndex], fragments: BitMap) -> bool:
    """Whether segments cover all of some fragments, and no fragment twice."""
    covered = BitMap.union(*(index.segment.covered for index in indices))
    return covered >= fragments and sum(len(index.segment.covered) for index in indices) == len(covered)


class _Request:
    """The fragments whose rows are wanted, and the most bytes to read for an exact answer.

    Attributes:
        fragments: the fragments.
        most_bytes: None if an answer need not be exact.
        present: the ids of the fragments.
    """

    def __init__(self, fragments: Sequence[table_pb2.DataFragment], most_bytes: int | None) -> None:
        self.fragments, self.most_bytes = fragments, most_bytes
        self.present = BitMap(fragment.id for fragment in fragments)


class _Query(ABC):
    """A condition, and the indices that can answer it."""

    @abstractmethod
    def answer(self, request: _Request) -> IndexAnswer | None:
        """Return the rows for which the condition can be true; None if they are unknown, or must be exact
        and are not."""

    def can_be_exact(self, request: _Request) -> bool:
        """Whether each part of the condition has an index whose answer may be exact."""
        return False

    def lookups(self) -> Iterator[_Lookup]:
        """Yield the lookups in indices, in the order of the condition."""
        yield from ()


class _Unknown(_Query):
    """A part of a condition that no index answers."""

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
    """A condition "is not null", which Spark adds to every comparison.

    Attributes:
        direct: the condition as a lookup.
        nulls: the lookup of the rows that are null, the other rows of an exact answer.
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
        return IndexAnswer(RowSet.whole(sizes).with_sizes(sizes) - nulls.rows, exact=True)

    def can_be_exact(self, request: _Request) -> bool:
        return self.nulls.can_be_exact(request)

    def lookups(self) -> Iterator[_Lookup]:
        return self.direct.lookups()


@dataclass(frozen=True)
class _Lookup(_Query):
    """A condition on one column, and the indices of this column.

    Attributes:
        pruner: opened the indices.
        tree, probe: the condition.
        field: the column.
        groups: the segments of each index, the best index first.
    """

    pruner: ScalarPruner
    tree: Expression
    probe: ColumnPredicate
    field: Field
    groups: tuple[Sequence[ScalarIndex], ...]

    def answer(self, request: _Request) -> IndexAnswer | None:
        """Ask one index after the other; the first that knows something answers."""
        for group in self.groups:
            exact = self._is_exact(group, request)
            if exact or request.most_bytes is None:
                answer = self._ask(group, request, exact=exact)
                if answer is not None:
                    return answer
        return None

    def can_be_exact(self, request: _Request) -> bool:
        return any(self._is_exact(group, request) for group in self.groups)

    def lookups(self) -> Iterator[_Lookup]:
        yield self

    def _is_exact(self, group: Sequence[ScalarIndex], request: _Request) -> bool:
        # Documents of JSON are read as text, which has another order than their bytes.
        return (
            all(index.is_exact for index in group)
            and not self.field.is_json
            and self.pruner.refers_to_rows(group)
            and covers_once(group, request.present)
        )

    def _ask(self, group: Sequence[ScalarIndex], request: _Request, *, exact: bool) -> IndexAnswer | None:
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
                # The scan says what is wrong with the condition, if it ever computes that part.
                return None
            if rows is not None:
                unknown -= index.segment.covered
                result |= self.pruner.resolved(index, rows)
        if unknown == request.present and request.present:
            return None
        rows = result.rows.only(fragment for fragment in result.rows if fragment in request.present)
        answer = IndexAnswer(rows | RowSet.whole(unknown), result.exact and not unknown)
        return answer if answer.exact or request.most_bytes is None else None


def _text(tree: Expression) -> str:
    """Return a part of a condition as text, bounds of one value side by side."""
    parts = tree.arguments if isinstance(tree, Call) and tree.function == "and" else (tree,)
    return " && ".join(map(expression_text, parts))
