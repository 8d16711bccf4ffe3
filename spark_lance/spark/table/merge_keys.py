"""The key columns in the condition of a merge.

Two merges that insert the same key concurrently must not both succeed, so each commit records its inserted
keys (see `table.rows.key_lookup.key_filter`). This module finds the key columns, which the condition compares
for equality between table and source. If it cannot parse the condition, there are no keys, and every
concurrent insert is a conflict.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from spark_lance.spark.table.expressions import Expression, ResolvedExpression, expression_text

if TYPE_CHECKING:
    _Name = tuple[str, ...]

_REFERENCE = re.compile(r"[\w`][\w`.]*")


def equal_columns(
    condition: Expression, alias: str | None, target: Collection[str], source: Collection[str]
) -> list[tuple[str, str]]:
    """Return the pairs of a table column and a source column that a merge condition compares for equality.

    Args:
        condition: the merge condition.
        alias: alias of the table.
        target: column names of the table.
        source: column names of the source.

    Returns:
        Pairs of lower-cased names without qualifiers.
    """
    if isinstance(condition, ResolvedExpression):
        return list(condition.equal)
    own, others = {name.lower() for name in target}, {name.lower() for name in source}
    pairs = []
    for left, right in _equalities(condition):
        for target_text, source_text in ((left, right), (right, left)):
            key, value = (
                _table_column(target_text, alias, own, others),
                _source_column(source_text, alias, own, others),
            )
            if key is not None and value is not None:
                pairs.append((key, value))
                break
    return pairs


def column_path(expression: Expression) -> tuple[str, ...] | None:
    """Return the lower-cased name parts of an expression that is only a column, else None."""
    if isinstance(expression, ResolvedExpression):
        return None if expression.of_source is None else (expression.of_source,)
    if not isinstance(expression, str):
        text = expression_text(expression)
        return _name_parts(text) if _REFERENCE.fullmatch(text) else None
    tree = _parse(expression)
    return _column_name(tree) if tree is not None else None


def _table_column(
    name: _Name, alias: str | None, own: Collection[str], others: Collection[str]
) -> str | None:
    """Return the table column of a name, or None."""
    if len(name) == 2 and alias is not None and name[0] == alias.lower():
        return name[1] if name[1] in own else None
    if len(name) == 1 and name[0] in own and name[0] not in others:
        return name[0]
    return None


def _source_column(
    name: _Name, alias: str | None, own: Collection[str], others: Collection[str]
) -> str | None:
    """Return the source column of a name, or None."""
    if len(name) == 2 and (alias is None or name[0] != alias.lower()):
        return name[1] if name[1] in others and name[0] not in others and name[0] not in own else None
    if len(name) == 1 and name[0] in others and name[0] not in own:
        return name[0]
    return None


def _equalities(condition: Expression) -> Iterator[tuple[_Name, _Name]]:
    """Yield the column pairs of all equalities in a conjunction."""
    if not isinstance(condition, str):
        yield from _column_text_equalities(expression_text(condition))
        return
    tree = _parse(condition)
    waiting = [] if tree is None else [tree]
    while waiting:
        node = waiting.pop().unnest()
        if isinstance(node, exp.And):
            waiting += [node.right, node.left]
        elif isinstance(node, exp.EQ):
            left, right = _column_name(node.left), _column_name(node.right)
            if left and right:
                yield left, right


def _parse(text: str) -> Any:
    try:
        return sqlglot.parse_one(text, dialect="spark")
    except SqlglotError:
        return None


def _column_name(node: Any) -> _Name | None:
    node = node.unnest()
    if not isinstance(node, exp.Column | exp.Dot):
        return None
    if any(not isinstance(part, exp.Identifier) for part in node.parts):
        return None
    return tuple(part.name.lower() for part in node.parts)


def _column_text_equalities(text: str) -> Iterator[tuple[_Name, _Name]]:
    """Yield the column pairs in the text of a Column, such as `and(=(t.a, s.a), =(t.b, s.b))`.

    Spark Connect writes `==` for `=`.
    """
    call = re.fullmatch(r"(and|==?)\((.*)\)", text.strip(), re.DOTALL)
    if call is None:
        return
    arguments = _split_arguments(call[2])
    if len(arguments) != 2:
        return
    if call[1] == "and":
        for argument in arguments:
            yield from _column_text_equalities(argument)
    elif all(_REFERENCE.fullmatch(argument) for argument in arguments):
        yield _name_parts(arguments[0]), _name_parts(arguments[1])


def _split_arguments(text: str) -> Sequence[str]:
    """Split the arguments of a call; return none for text with quotes, which is not parsed."""
    if "'" in text or '"' in text:
        return []
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _name_parts(reference: str) -> _Name:
    return tuple(part.strip("`").lower() for part in reference.split("."))
