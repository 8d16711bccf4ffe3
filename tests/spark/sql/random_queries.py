"""Random tables and random queries over them, in the words of Spark SQL."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

__all__ = ["DECLARED", "INDICES", "SCHEMA", "Queries", "RelationModel", "literal", "rows"]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("i", pa.int32()),
        ("tiny", pa.int8()),
        ("n", pa.float64()),
        ("f", pa.float32()),
        ("d", pa.decimal128(12, 3)),
        ("big", pa.decimal128(38, 10)),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("yes", pa.bool_()),
        ("day", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("w", pa.timestamp("us")),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("l", pa.list_(pa.int32())),
    ]
)
# Column -> kinds of index that it may have.
INDICES = {
    **dict.fromkeys(("i", "tiny", "s", "day", "t", "st.x"), ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")),
    **dict.fromkeys(("n", "f", "d", "w", "yes", "raw"), ("BTREE", "BITMAP", "ZONEMAP")),
    "id": ("BTREE", "ZONEMAP"),
    "l": ("LABEL_LIST",),
    "st.y": ("BTREE", "NGRAM", "BITMAP"),
}

_NOON = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
_VALUES: dict[str, tuple[Any, ...]] = {
    "i": (0, 1, -1, 2, 7, 77, 2**31 - 1, -(2**31)),
    "tiny": (0, 1, -1, 127, -128),
    "n": (0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 1e300, 0.1),
    "f": (0.0, -0.0, 0.5, float("nan"), float("-inf"), 3.25),
    "d": tuple(Decimal(text) for text in ("0", "1.500", "-1.500", "999999999.999", "0.001")),
    "big": tuple(Decimal(text) for text in ("0", "1.5", f"-{'9' * 28}.0000000001", "0.0000000001")),
    "s": ("", "a", "ab", "abc", "b", "é", "a%b", "a_b", " a", "A", "zz", "z" * 40),
    "raw": (b"", b"\x00", b"\xff", b"ab", b"a"),
    "yes": (True, False),
    "day": (date(2024, 2, 29), date(1970, 1, 1), date(1969, 12, 31), date(2024, 3, 1), date(1900, 1, 1)),
    "t": tuple(_NOON + timedelta(hours=hours) for hours in (0, -1, 5, 24 * 31)),
    "w": tuple((_NOON + timedelta(minutes=minutes)).replace(tzinfo=None) for minutes in (0, 1, -600)),
}


# A condition each; {pattern} stands for one of LIKE.
_ODD = """
s LIKE '{pattern}'
st.y NOT LIKE '{pattern}'
s ILIKE '{pattern}'
s RLIKE '^a'
startswith(s, 'a')
contains(s, 'b')
endswith(st.y, 'b')
upper(s) = 'A'
length(s) > 1
cast(i AS STRING) = '7'
try_cast(s AS INT) IS NULL
i + 1L > 2
i % 2 = 0
abs(tiny) = 1
isnan(n)
NOT isnan(f)
n = f
i = st.x
n > i
d > n
i < tiny
s = st.y
d = big
year(day) = 2024
day = cast(w AS DATE)
t = w
t > day
day > '2000-01-01'
i = 1.0
i < 0.5
i = '1'
tiny = 300
i > 3000000000
d = 1.5
d < 1e0
f = 0.1
n = 0.1
f = 3.25
coalesce(i, 7) = 7
nullif(i, 1) IS NULL
array_contains(l, 1)
size(l) = 2
l[0] = 1
l = array(1)
st = named_struct('x', 1, 'y', 'a')
st.x IS NULL AND st IS NOT NULL
yes
NOT yes
yes <=> NULL
true
false
NULL
i = NULL
CASE WHEN i > 0 THEN yes ELSE s = 'a' END
if(yes, i, tiny) > 0
i IN (SELECT tiny FROM {rows})
i NOT IN (SELECT x FROM VALUES (1), (7) AS v(x))
(i, s) IN ((1, 'a'), (7, 'b'))
EXISTS (SELECT 1 FROM {rows} o WHERE o.st.x = i AND o.id < 20)
i > (SELECT min(tiny) FROM {rows})
id % 5 = 2
hash(s) % 2 = 0
raw = cast('a' AS BINARY)
hex(raw) = 'FF'
t BETWEEN '2024-02-29' AND '2024-03-01'
date_trunc('DAY', t) = timestamp'2024-02-29'
cast(n AS INT) = 0
big > 0
big = 0.0000000001
s > ' '
s < 'é'
""".strip().splitlines()

_NESTED = """
SELECT id FROM {rows} WHERE {one} UNION ALL SELECT id FROM {rows} WHERE {two}
SELECT a.id, b.id FROM {rows} a JOIN {rows} b ON a.id = b.id AND a.i = b.st.x
SELECT * FROM (SELECT id, s, count(*) OVER (PARTITION BY s) AS c FROM {rows} WHERE {one}) WHERE c > 1
SELECT count(*) FROM (SELECT i FROM {rows} WHERE {one} INTERSECT SELECT st.x FROM {rows} WHERE {two})
SELECT id, e FROM {rows} LATERAL VIEW explode(l) x AS e WHERE {one}
SELECT sum(q.c) FROM (SELECT s, count(*) AS c FROM {rows} WHERE {one} GROUP BY s) q WHERE q.s > 'a'
""".strip().splitlines()


def rows(draw: random.Random, count: int, first: int = 0) -> list[dict[str, Any]]:
    """Return rows with nulls; numbers and texts come from few values, so that they meet."""
    share = draw.choice((0, 0.1, 0.5))
    keep = {name: draw.sample(values, draw.randint(1, len(values))) for name, values in _VALUES.items()}

    def value(name: str) -> Any:
        if draw.random() < share:
            return None
        return draw.choice(keep[name]) if draw.random() < 0.95 else draw.choice(_VALUES[name])

    def row(number: int) -> dict[str, Any]:
        results = {name: value(name) for name in _VALUES}
        pair = {"x": value("i"), "y": value("s")}
        results["st"] = None if draw.random() < share else pair
        length = draw.randint(0, 3)
        results["l"] = None if draw.random() < share else [value("tiny") for _ in range(length)]
        return {"id": number, **results}

    return [row(first + number) for number in range(count)]


def literal(value: Any) -> str:
    """Return a value as SQL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"double('{value}')"
    if isinstance(value, Decimal):
        return f"{value:f}BD"
    if isinstance(value, str):
        return "'" + value.replace("'", "\\'") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, datetime):
        return f"{'timestamp' if value.tzinfo else 'timestamp_ntz'}'{value.isoformat(sep=' ')}'"
    return f"date'{value}'" if isinstance(value, date) else str(value)


@dataclass(frozen=True)
class RelationModel:
    """What the queries of `Queries` are about: columns and conditions.

    Attributes:
        values: column or field -> values to compare it with.
        projections: what a query may select.
        conditions: conditions that no generator makes; {pattern} is one of LIKE.
        nested: queries with subqueries; {one} and {two} are conditions.
        totals: aggregates to select by group.
        texts: columns and fields whose equal values may be different texts, such as those with a collation.
    """

    values: Mapping[str, tuple[Any, ...]]
    projections: tuple[str, ...]
    conditions: tuple[str, ...]
    nested: tuple[str, ...]
    totals: tuple[str, ...]
    texts: tuple[str, ...] = ()


_PLAIN = RelationModel(
    values={**_VALUES, "id": (), "st.x": _VALUES["i"], "st.y": _VALUES["s"]},
    projections=(*SCHEMA.names, "st.x", "st.y", "l[0]", "i + 1L", "upper(s)"),
    conditions=tuple(_ODD),
    nested=tuple(_NESTED),
    totals=("count(*)", "count(i)", "min(s), max(day)", "sum(id)", "max(n)", "count(DISTINCT st.x)"),
)

_LETTERS = ("", "a", "A", "ab", "Ab", "AB ", "a ", "é", "É", "zz", "Z", "abcd", "ABCD", "ss", "İ")
_SHORT = ("a", "A", "ab", "ab ", "zz", "Zz", "abc", "")
# Tables with collations, CHAR, VARCHAR and nested structs.
DECLARED = RelationModel(
    values={
        "id": (),
        "i": (0, 1, -1, 7, 300, 70000),
        "d": tuple(Decimal(text) for text in ("0", "1.50", "-1.50", "9999.99", "0.01")),
        "lc": (*_LETTERS, "ß"),
        "ci": _LETTERS,
        "tr": _LETTERS,
        "ch": _SHORT,
        "vc": _SHORT,
        "st.n": (0, 1, -1, 300),
        "st.c": _SHORT,
        "st.in.lc": _LETTERS,
    },
    projections=tuple(
        """
id; i; d; lc; ci; tr; ch; vc; st; ls; mp; st.n; st.c; st.in; st.in.lc; ls[0].v; mp['k'].b
length(ch); length(vc); length(tr); concat(ch, '|'); upper(lc); st.in.v
""".strip()
        .replace("\n", "; ")
        .split("; ")
    ),
    conditions=tuple(
        """
lc LIKE '{pattern}'
vc LIKE '{pattern}'
ch LIKE '{pattern}'
ch LIKE 'a%'
startswith(lc, 'A')
contains(lc, 'B')
endswith(lc, 'D')
startswith(vc, 'a')
startswith(ch, 'ab')
lc = vc
lc = ch
ch = vc
tr = ch
ch = 'a  '
vc = 'a  '
ch = st.c
lc = st.in.lc
length(ch) = 4
length(vc) = 2
lc COLLATE UTF8_BINARY = 'A'
vc COLLATE UTF8_LCASE = 'A'
ci COLLATE UTF8_LCASE = 'a'
lower(lc) = 'ab'
trim(ch) = 'ab'
substring(lc, 1, 1) = 'A'
concat(vc, 'x') = 'abx'
coalesce(lc, 'AB') = 'ab'
nullif(lc, 'A') IS NULL
lc IN ('A', 'zZ', NULL)
lc NOT IN ('A', 'zZ')
lc BETWEEN 'A' AND 'B'
array_contains(ls.v, 'a')
size(ls) = 2
ls[0].n = 1
ls[0].lc = 'AB'
mp['k'].b > 0
st IS NULL
st.in IS NULL AND st IS NOT NULL
st.n IS NULL
st.in = named_struct('v', 'a', 'lc', 'A')
CASE WHEN i > 0 THEN lc = 'a' ELSE vc = 'a' END
lc IN (SELECT lc FROM {rows} o WHERE o.id < 9)
EXISTS (SELECT 1 FROM {rows} o WHERE o.lc = {rows}.lc AND o.id <> {rows}.id)
vc > (SELECT min(vc) FROM {rows})
hash(vc) % 2 = 0
locate('B', lc) > 0
lc <=> NULL
""".strip().splitlines()
    ),
    nested=tuple(
        """
SELECT id FROM {rows} WHERE {one} UNION ALL SELECT id FROM {rows} WHERE {two}
SELECT a.id, b.id FROM {rows} a JOIN {rows} b ON a.lc = b.lc AND a.vc = b.vc
SELECT a.id, b.id FROM {rows} a JOIN {rows} b ON a.ch = b.vc
SELECT a.id, b.id FROM {rows} a LEFT JOIN {rows} b ON a.tr = b.tr AND b.id < 10
SELECT a.id FROM {rows} a LEFT ANTI JOIN {rows} b ON a.ci = b.st.in.lc
SELECT id, count(*) OVER (PARTITION BY lc) AS c FROM {rows} WHERE {one}
SELECT id, rank() OVER (ORDER BY ci) AS c FROM {rows} WHERE {one}
SELECT count(*) FROM (SELECT lc FROM {rows} WHERE {one} INTERSECT SELECT lc FROM {rows} WHERE {two})
SELECT id, e.v, e.n FROM {rows} LATERAL VIEW explode(ls) x AS e WHERE {one}
SELECT sum(q.c) FROM (SELECT lc, count(*) AS c FROM {rows} WHERE {one} GROUP BY lc) q WHERE q.lc > 'a'
""".strip().splitlines()
    ),
    totals=("count(*)", "count(lc)", "lower(min(lc)), max(vc)", "sum(id)", "max(d)", "count(DISTINCT ci)"),
    texts=("lc", "ci", "tr", "st.in.lc"),
)


class Queries:
    """Queries over a relation that stands in them as `{rows}`, with the key `id`.

    Args:
        draw: where chance comes from.
        model: the columns of the relation.
    """

    def __init__(self, draw: random.Random, model: RelationModel = _PLAIN) -> None:
        self._draw = draw
        self._model = model

    def query(self) -> tuple[str, bool]:
        """Return a query, and whether the order of its answer counts."""
        often = (self._plain, self._first, self._groups, self._joined)
        kinds = (*often, *often, self._plain, self._totals, self._nested, self._limited)
        kind: Callable[[], tuple[str, bool]] = self._draw.choice(kinds)
        return kind()

    def condition(self, depth: int = 2) -> str:
        """Return a condition on a row."""
        draw = self._draw
        if depth and draw.random() < 0.55:
            kind = draw.choice(("AND", "OR", "AND", "OR", "NOT"))
            if kind == "NOT":
                return f"NOT ({self.condition(depth - 1)})"
            return f"({self.condition(depth - 1)}) {kind} ({self.condition(depth - 1)})"
        return self._draw.choice((self._compared, self._compared, self._among, self._odd))()

    def _value(self, name: str) -> Any:
        return self._draw.choice(self._model.values["i" if name == "id" else name])

    def _name(self) -> str:
        return self._draw.choice(list(self._model.values))

    def _one_text(self, name: str, expression: str = "{}") -> str:
        """Return an expression of a column as one text for all of its values that are equal."""
        value = expression.format(name)
        return f"rtrim(lower({value} COLLATE UTF8_BINARY))" if name in self._model.texts else value

    def _compared(self) -> str:
        draw, name = self._draw, self._name()
        sign = draw.choice(("=", "<", "<=", ">", ">=", "<>", "<=>"))
        value = self._value(name) if draw.random() < 0.95 else None
        if name == "id":
            value = draw.randrange(-1, 400)
        one, two = (name, literal(value)) if draw.random() < 0.8 else (literal(value), name)
        return f"{one} {sign} {two}"

    def _among(self) -> str:
        draw, name = self._draw, self._name()
        negated = draw.choice(("", "", "NOT "))
        how = draw.randrange(4)
        if how == 0:
            return f"{name} IS {negated}NULL"
        values = [self._value(name) for _ in range(draw.randint(1, 12))]
        if name == "id":
            values = [draw.randrange(400) for _ in values]
        if draw.random() < 0.15:
            values.append(None)
        if how == 1:
            return f"{name} {negated}BETWEEN {literal(values[0])} AND {literal(values[-1])}"
        return f"{name} {negated}IN ({', '.join(map(literal, values))})"

    def _odd(self) -> str:
        draw = self._draw
        pattern = draw.choice(("a%", "%b", "%a%", "a_", "", "a\\\\%b", "_", "%", "a\\\\_b", "é%", "abc"))
        return draw.choice(self._model.conditions).replace("{pattern}", pattern)

    def _where(self) -> str:
        return f" WHERE {self.condition()}" if self._draw.random() < 0.85 else ""

    def _columns(self) -> str:
        return ", ".join(self._draw.sample(self._model.projections, self._draw.randint(1, 6)))

    def _plain(self) -> tuple[str, bool]:
        if self._draw.random() < 0.1 and self._model.texts:
            return f"SELECT DISTINCT {self._one_text(self._name())} FROM {{rows}}{self._where()}", False
        distinct = "DISTINCT " if self._draw.random() < 0.1 else ""
        if self._model.texts:
            distinct = ""
        return f"SELECT {distinct}{self._columns()} FROM {{rows}}{self._where()}", False

    def _order(self, name: str) -> str:
        way = self._draw.choice(("", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST"))
        return f"{name}{way}"

    def _first(self) -> tuple[str, bool]:
        draw = self._draw
        names = [self._order(self._name()) for _ in range(draw.randint(1, 2))]
        offset = f" OFFSET {draw.randrange(5)}" if draw.random() < 0.3 else ""
        # By the key, too, as equal ones may come in any order; or only what the order is about.
        limit = f"LIMIT {draw.randrange(8)}{offset}"
        if draw.random() < 0.5:
            order = f"ORDER BY {', '.join(names)}, id {limit}"
            return f"SELECT id, {self._columns()} FROM {{rows}}{self._where()} {order}", True
        name = names[0].split()[0]
        return f"SELECT {self._one_text(name)} FROM {{rows}}{self._where()} ORDER BY {names[0]} {limit}", True

    def _totals(self) -> tuple[str, bool]:
        request = (
            "count(*)",
            "count({})",
            "min({})",
            "max({})",
            "count(DISTINCT {})",
            "max_by(id, ({}, id))",
        )
        chosen = []
        for _ in range(self._draw.randint(1, 4)):
            name, total = self._name(), self._draw.choice(request)
            is_text = total.startswith(("min", "max("))
            chosen.append(self._one_text(name, total) if is_text else total.format(name))
        return f"SELECT {', '.join(chosen)} FROM {{rows}}{self._where()}", False

    def _groups(self) -> tuple[str, bool]:
        name = self._name()
        more = self._draw.choice(self._model.totals)
        having = self._draw.choice(("", "", " HAVING count(*) > 2"))
        shown = self._one_text(name)
        return f"SELECT {shown}, {more} FROM {{rows}}{self._where()} GROUP BY {name}{having}", False

    def _joined(self) -> tuple[str, bool]:
        draw, name = self._draw, self._name()
        values = ", ".join(f"({literal(self._value(name))})" for _ in range(draw.randint(1, 4)))
        keys = f"(SELECT /*+ BROADCAST */ k FROM VALUES {values} AS v(k) WHERE rand() >= 0)"
        kind = draw.choice(("JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "RIGHT JOIN"))
        shown = "id, k" if kind in ("JOIN", "RIGHT JOIN") else "id"
        more = f" AND {self.condition(1)}" if draw.random() < 0.3 else ""
        same = draw.choice(("=", "=", "<=>"))
        return f"SELECT {shown} FROM {{rows}} {kind} {keys} q ON {name} {same} k{more}", False

    def _nested(self) -> tuple[str, bool]:
        one, two = self.condition(1), self.condition(1)
        text = self._draw.choice(self._model.nested)
        return text.replace("{one}", one).replace("{two}", two), False

    def _limited(self) -> tuple[str, bool]:
        limit = self._draw.randrange(30)
        return f"SELECT count(*) FROM (SELECT id FROM {{rows}}{self._where()} LIMIT {limit})", False
