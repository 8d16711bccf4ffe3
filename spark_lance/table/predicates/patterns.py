"""Regular expressions over text.

RE2 searches, which has the syntax of Rust's regular expressions in all but rare corners. Flags are letters
such as "i" (any case), "s" and "m".
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError
from spark_lance.file.arrays import one_array
from spark_lance.table.predicates.list_functions import make_list
from spark_lance.table.predicates.values import Value

__all__ = ["regexp_like", "regexp_match"]

# An escaped character, a class of characters, or the beginning of a group.
_GROUP = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?!\?)|\(\?P?<\w+>", re.DOTALL)


def regexp_like(text: Value, pattern: str | None, flags: str | None = None) -> Value:
    """Whether a pattern is found in texts."""
    if pattern is None:
        return pc.if_else(pc.is_valid(text), pa.scalar(None, pa.bool_()), None)
    return pc.match_substring_regex(text, _flagged(pattern, flags))


def regexp_match(text: Value, pattern: str | None, flags: str | None = None) -> Value:
    """Return the groups of the first match, or the whole match if it has none; null without a match."""
    if pattern is None:
        return pa.scalar(None, pa.list_(pa.string()))
    names: list[str] = []

    def named(match: re.Match[str]) -> str:
        if not match.group().startswith("("):
            return match.group()
        names.append(f"g{len(names)}")
        return f"(?P<{names[-1]}>"

    groups = _GROUP.sub(named, pattern)
    if not names:
        names, groups = ["g0"], f"(?P<g0>{pattern})"
    if isinstance(text, pa.Scalar):
        text = pa.array([text.as_py()], text.type)
    text = one_array(text)
    groups_of_rows = pc.extract_regex(text, _flagged(groups, flags))
    return _groups(groups_of_rows, len(names))


def _groups(matches: pa.StructArray, count: int) -> pa.Array:
    """Return the groups of matches as lists."""
    lists = make_list(*(pc.cast(pc.struct_field(matches, i), pa.string()) for i in range(count)))
    return pc.if_else(matches.is_valid(), lists, pa.scalar(None, lists.type))


def _flagged(pattern: str, flags: str | None) -> str:
    if flags and not re.fullmatch("[imsU]+", flags):
        raise ExpressionError(f"the flags of a regular expression are some of i, m, s and U, not {flags!r}")
    return f"(?{flags}){pattern}" if flags else pattern
