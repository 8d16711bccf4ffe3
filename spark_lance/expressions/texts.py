"""Expressions as text in the notation of SQL, for plans that people read."""

from __future__ import annotations

from spark_lance.expressions.expressions import Call, Cast, Column, Expression, Literal
from spark_lance.expressions.predicate import Condition

_INFIX = frozenset({"=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "and", "or", "like", "||"})


def expression_text(node: Expression) -> str:
    """Return an expression as text; strings in it have no quotes."""
    if isinstance(node, Column):
        return ".".join(node.path)
    if isinstance(node, Literal):
        return str(node.value)
    if isinstance(node, Cast):
        return f"cast({expression_text(node.argument)} as {node.type})"
    assert isinstance(node, Call)
    if node.function == "geometry":
        return expression_text(node.arguments[0])
    parts = [
        f"({expression_text(part)})"
        if isinstance(part, Call) and part.function in ("and", "or")
        else expression_text(part)
        for part in node.arguments
    ]
    if node.function in _INFIX and len(parts) > 1:
        return f" {node.function.upper()} ".join(parts)
    if node.function == "is_null":
        return f"{parts[0]} IS NULL"
    if node.function == "in":
        return f"{parts[0]} IN [{', '.join(parts[1:])}]"
    return f"{node.function}({', '.join(parts)})"


def condition_text(condition: Condition) -> str:
    """Return a condition as text."""
    trees = condition.trees()
    return " AND ".join(expression_text(tree) for tree in trees) if trees else condition.text
