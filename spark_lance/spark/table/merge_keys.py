"""The key columns in the condition of a merge.

Two merges that insert the same key at once must not both succeed, so each commit records the keys that it
inserts (see `table.rows.key_filter`). This module finds the key columns: those that the condition compares
for equality between table and source. A condition that it does not understand has no keys; then every
concurrent insert is a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from spark_lance.spark.table.expressions import Expression, Resolved, text_of

if TYPE_CHECKING:
    _Name = tuple[str, ...]

_REFERENCE = re.compile(r"[\w`][\w`.]*")


def equal_columns(
    condition: Expression, alias: str | None, target: Collection[str], source: Collection[str]
) -> list[tuple[str, str]]:
    """Return the pairs of a column of the table and one of the source that must be equal.

    Args:
        condition: of the merge.
        alias: the table's.
        target: the table's columns.
        source: the source's columns.

    Returns:
        Lower-cased names without qualifiers.
    """
    if isinstance(condition, Resolved):
        return list(condition.equal)
    own, others = {name.lower() for name in target}, {name.lower() for name in source}
    pairs = []
    for left, right in _equalities(condition):
        for mine, theirs in ((left, right), (right, left)):
            key, value = _side(mine, alias, own, others), _foreign(theirs, alias, own, others)
            if key is not None and value is not None:
                pairs.append((key, value))
                break
    return pairs


def column_path(expression: Expression) -> tuple[str, ...] | None:
    """Return the lower-cased parts of the name if an expression is nothing but a column."""
    if isinstance(expression, Resolved):
        return None if expression.of_source is None else (expression.of_source,)
    if not isinstance(expression, str):
        text = text_of(expression)
        return _parts(text) if _REFERENCE.fullmatch(text) else None
    tree = _parse(expression)
    return _column(tree) if tree is not None else None


def _side(name: _Name, alias: str | None, own: Collection[str], others: Collection[str]) -> str | None:
    """Return the table's column that a name stands for, None if it does not."""
    if len(name) == 2 and alias is not None and name[0] == alias.lower():
        return name[1] if name[1] in own else None
    if len(name) == 1 and name[0] in own and name[0] not in others:
        return name[0]
    return None


def _foreign(name: _Name, alias: str | None, own: Collection[str], others: Collection[str]) -> str | None:
    """Return the source's column that a name stands for, None if it does not."""
    if len(name) == 2 and (alias is None or name[0] != alias.lower()):
        return name[1] if name[1] in others and name[0] not in others and name[0] not in own else None
    if len(name) == 1 and name[0] in others and name[0] not in own:
        return name[0]
    return None


def _equalities(condition: Expression) -> Iterator[tuple[_Name, _Name]]:
    """Yield the pairs of columns that stand in equalities which must all be true."""
    if not isinstance(condition, str):
        yield from _of_column_text(text_of(condition))
        return
    tree = _parse(condition)
    waiting = [] if tree is None else [tree]
    while waiting:
        node = waiting.pop().unnest()
        if isinstance(node, exp.And):
            waiting += [node.right, node.left]
        elif isinstance(node, exp.EQ):
            left, right = _column(node.left), _column(node.right)
            if left and right:
                yield left, right


def _parse(text: str) -> Any:
    try:
        return sqlglot.parse_one(text, dialect="spark")
    except SqlglotError:
        return None


def _column(node: Any) -> _Name | None:
    node = node.unnest()
    if not isinstance(node, exp.Column | exp.Dot):
        return None
    if any(not isinstance(part, exp.Identifier) for part in node.parts):
        return None
    return tuple(part.name.lower() for part in node.parts)


def _of_column_text(text: str) -> Iterator[tuple[_Name, _Name]]:
    """Yield the pairs from the text of a Column, such as `and(=(t.a, s.a), =(t.b, s.b))`.

    Spark Connect writes `==` for `=`.
    """
    call = re.fullmatch(r"(and|==?)\((.*)\)", text.strip(), re.DOTALL)
    if call is None:
        return
    arguments = _arguments(call[2])
    if len(arguments) != 2:
        return
    if call[1] == "and":
        for argument in arguments:
            yield from _of_column_text(argument)
    elif all(_REFERENCE.fullmatch(argument) for argument in arguments):
        yield _parts(arguments[0]), _parts(arguments[1])


def _arguments(text: str) -> Sequence[str]:
    """Split the arguments of a call; text with quotes has none that are understood."""
    if "'" in text or '"' in text:
        return []
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _parts(reference: str) -> _Name:
    return tuple(part.strip("`").lower() for part in reference.split("."))
