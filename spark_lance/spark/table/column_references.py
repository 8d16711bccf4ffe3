"""Which columns of a table conditions and expressions need.

Spark reads Python data sources with all columns, so a job that evaluates a condition states itself which
columns it reads (option `columns`). The columns of an expression are taken from its text: a word that equals
the name of a column is enough. That sometimes finds too many columns, never too few. Where the text does not
show everything (a star, a subquery), all columns are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Expression", "Resolved", "columns_option", "needed_columns", "text_of"]


@dataclass(frozen=True)
class Resolved:
    """An expression of a SQL statement that Spark has resolved, with what is known of it for sure.

    Attributes:
        column: the expression, in which columns of the table and of a source are behind their aliases.
        needs: the columns of the table that it needs, system columns too.
        text: the expression for people.
        of_source: the column of the source, in lower case, that it is if it is nothing else.
        equal: pairs of a column of the table and one of the source, in lower case, that must be equal for
            it to be true.
    """

    column: Column
    needs: frozenset[str]
    text: str
    of_source: str | None = None
    equal: tuple[tuple[str, str], ...] = ()


# SQL text, or a Column of the user's session, classic or of Spark Connect; or a part of a SQL statement.
Expression: TypeAlias = "str | Column | Resolved"

_REPR = re.compile(r"Column<'(.*)'>", re.DOTALL)
# The end of a text before a name with a qualifier.
_QUALIFIED = re.compile(r"(\w+|`(?:[^`]|``)*`)\s*\.\s*`?\Z")
# A star other than a multiplication (written "*(" in the text of a Column), a query, shortened text.
_OPAQUE = re.compile(r"(?:^|[(,.])\s*\*(?!\()|\bselect\b|subquery|exists|\.\.\.", re.IGNORECASE)


def text_of(expression: Expression) -> str:
    """Return an expression as text: that of the user, or Spark's for a Column."""
    if isinstance(expression, str):
        return expression
    if isinstance(expression, Resolved):
        return expression.text
    text = str(expression)
    match = _REPR.fullmatch(text)
    return match[1] if match else text


def needed_columns(
    names: Iterable[str], expressions: Iterable[Expression], alias: str | None = None
) -> list[str]:
    """Return the columns among `names` that expressions may need, in their order.

    Names are compared as Spark does by default, whatever their case.

    Args:
        names: the columns there are, system columns too.
        expressions: conditions and values.
        alias: the table's; a word behind a dot is a column of the table only if that stands before the dot.
    """
    texts: list[str] = []
    sure: set[str] = set()
    for expression in expressions:
        if isinstance(expression, Resolved):
            sure |= {name.lower() for name in expression.needs}
        else:
            texts.append(text_of(expression))
    text = "\n".join(texts)
    if _OPAQUE.search(text):
        return list(names)
    return [name for name in names if name.lower() in sure or _named(name, text, alias)]


def _named(name: str, text: str, alias: str | None) -> bool:
    pattern = re.escape(name.replace("`", "``"))
    before = r"(?<!\w)" if re.match(r"\w", name) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", name) else ""
    hits = re.finditer(before + pattern + after, text, re.IGNORECASE)
    return any(_is_own(text[: place.start()], alias) for place in hits)


def _is_own(before: str, alias: str | None) -> bool:
    """Whether what stands before a name lets it be a column of the table."""
    qualified = _QUALIFIED.search(before)
    if qualified is None:
        return True
    return alias is not None and qualified[1].strip("`").lower() == alias.lower()


def columns_option(names: Iterable[str]) -> str:
    """Return names as the value of the option `columns`."""
    return json.dumps(list(names))
