"""Convert SQL text to expressions: sqlglot parses it, and this module converts the parsed tree.

The dialect is that of the reference implementation:

    `Big Name`          a column
    'text' and "text"   strings
    X'00'               bytes
    st.x or st['x']     a field of a struct
    l[1]                the first element of a list

Names of types: SQL's, in cast() and ::, and Arrow's, in arrow_cast().

Arrow's are written as the Rust implementation of Arrow prints them: Int8, Utf8, Timestamp(Microsecond, None),
Timestamp(ms, "UTC"), List(Int64), FixedSizeList(2, Float32), Dictionary(Int32, Utf8), Decimal128(10, 2).
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from sqlglot import exp, parser, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import ParseError, SqlglotError

from spark_lance.errors import ExpressionError, suggestion
from spark_lance.expressions.expressions import Call, Cast, Column, Expression, Literal
from spark_lance.expressions.functions import FUNCTIONS
from spark_lance.expressions.values import parse_moment

SQL_TYPES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINT": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "VARCHAR": pa.string(),
    "CHAR": pa.string(),
    "BINARY": pa.binary(),
    "VARBINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPNTZ": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "DATETIME": pa.timestamp("us"),
    "TIME": pa.time64("us"),
}

_PLAIN: dict[str, pa.DataType] = {
    "Null": pa.null(),
    "Boolean": pa.bool_(),
    **{f"{sign}nt{bits}": getattr(pa, f"{sign.lower()}nt{bits}")() for sign in ("I", "UI")
       for bits in (8, 16, 32, 64)},
    **{f"Float{bits}": getattr(pa, f"float{bits}")() for bits in (16, 32, 64)},
    "Utf8": pa.string(),
    "LargeUtf8": pa.large_string(),
    "Utf8View": pa.string_view(),
    "Binary": pa.binary(),
    "LargeBinary": pa.large_binary(),
    "BinaryView": pa.binary_view(),
    "Date32": pa.date32(),
    "Date64": pa.date64(),
}  # fmt: skip

_UNITS = {"Second": "s", "Millisecond": "ms", "Microsecond": "us", "Nanosecond": "ns", "\u00b5s": "us"}
_UNITS |= {unit: unit for unit in ("s", "ms", "us", "ns")}
_TOKEN = re.compile(r"\s*(?:(\w+)|\"([^\"]*)\"|([(),]))")

# The parameters in parentheses: types, numbers and words.
_MAKERS: dict[str, Callable[..., pa.DataType]] = {
    "Timestamp": lambda unit, zone=None: pa.timestamp(_UNITS[unit], None if zone == "None" else zone),
    "Time32": lambda unit: pa.time32(_UNITS[unit]),
    "Time64": lambda unit: pa.time64(_UNITS[unit]),
    "Duration": lambda unit: pa.duration(_UNITS[unit]),
    "Decimal128": lambda digits, scale: pa.decimal128(int(digits), int(scale)),
    "Decimal256": lambda digits, scale: pa.decimal256(int(digits), int(scale)),
    "FixedSizeBinary": lambda width: pa.binary(int(width)),
    "Dictionary": pa.dictionary,
    "List": pa.list_,
    "LargeList": pa.large_list,
    "FixedSizeList": lambda *parts: pa.list_(parts[-1], int(parts[0])),
    "Some": lambda zone: zone,
}


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of a type name.

    Raises:
        ExpressionError: the name is not an Arrow type.
    """
    names = [next(part for part in groups if part) for groups in _TOKEN.findall(text)]
    try:
        if "".join(names) != re.sub(r"[\s\"]", "", text):
            raise ValueError(f"cannot be read as {' '.join(names)}")
        groups, rest = _read(names)
        if rest or not isinstance(groups, pa.DataType):
            raise ValueError("is not a type")
        return groups
    except (ValueError, KeyError, TypeError, IndexError, pa.ArrowInvalid) as error:
        raise ExpressionError(
            f"{text!r} is not an Arrow type such as 'Int8', 'Utf8' or 'Timestamp(Microsecond, None)': {error}"
        ) from error


def _read(names: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the meaning of the first of some tokens, with its arguments, and the remaining tokens."""
    name, rest = names[0], names[1:]
    if name in _MAKERS and rest and rest[0] == "(":
        arguments, rest = [], rest[1:]
        while rest[0] != ")":
            argument, rest = _read(rest)
            arguments.append(argument)
            if rest[0] in (",", "x"):
                rest = rest[1:]
        return _MAKERS[name](*arguments), rest[1:]
    return _PLAIN.get(name, name), rest


class _LanceSql(Dialect):
    class Tokenizer(tokens.Tokenizer):
        QUOTES = ["'", '"']  # noqa: RUF012 (read by sqlglot's metaclass)
        IDENTIFIERS = ["`"]  # noqa: RUF012
        STRING_ESCAPES = ["'", '"']  # noqa: RUF012
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012

    class Parser(parser.Parser):
        # Keep JSON paths as plain text.
        FUNCTIONS = {  # noqa: RUF012
            name: build for name, build in parser.Parser.FUNCTIONS.items() if not name.startswith("JSON_")
        }
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parse
            for name, parse in parser.Parser.FUNCTION_PARSERS.items()
            if not name.startswith("JSON_")
        }


_OPERATORS: dict[type[exp.Expression], str] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "is_same",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.Not: "not",
    exp.Neg: "negate",
    exp.Like: "like",
    exp.ILike: "ilike",
    exp.DPipe: "||",
    exp.Concat: "concat",
    exp.Array: "array",
    exp.BitwiseLeftShift: "<<",
    exp.BitwiseRightShift: ">>",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.BitwiseNot: "~",
}

# Marks of sqlglot on a node, besides its operands, that have no effect here or are checked. Any other mark
# (symmetric, distinct, ...) would be lost silently, so it is an error.
_MARKS = frozenset({"this", "is_string", "quoted", "nested", "safe", "coalesce", "typed", "ignore_nulls"})
_MARKS |= {"negate", "position", "big_int", "value_constructor", "zero_is_first_position"}

# Alternative function names -> names in FUNCTIONS.
_ALIASES = {
    "char_length": "length",
    "character_length": "length",
    "substr": "substring",
    "array_contains": "array_has",
    "list_has": "array_has",
    "list_contains": "array_has",
    "arrays_overlap": "array_has_any",
    "array_overlaps": "array_has_any",
    "array_contains_all": "array_has_all",
    "array_size": "array_length",
    "cardinality": "array_length",
    "is_nan": "isnan",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "make_array": "array",
    "make_list": "array",
    "datepart": "date_part",
    "pow": "power",
    "ceiling": "ceil",
    "current_timestamp": "now",
    "timestamp_trunc": "date_trunc",
    "btrim": "trim",
    "ifnull": "coalesce",
    "nvl": "coalesce",
    "isnull": "is_null",
    "day_of_month": "day",
}

# Functions that SQL text cannot call.
_INTERNAL = frozenset({"unsigned_nan", "element", "geometry", "json_candidate"})
_CONNECTIVES = frozenset({"and", "or", "not"})
_CASTS = {"to_timestamp": pa.timestamp("us"), "to_date": pa.date32()}


def parse_sql(text: str) -> Expression:
    """Parse an SQL expression such as "a > 1 and s like 'x%'".

    Raises:
        ExpressionError: the text is not a single expression, or uses an unsupported feature.
    """
    try:
        parsed = _parse_trees(text)
    except (SqlglotError, RecursionError) as error:
        raise ExpressionError(f"{text!r} is not an SQL expression: {_problem(error)}") from error
    if len(parsed) != 1:
        raise ExpressionError(f"{text!r} must be one SQL expression, such as \"id > 7 and name like 'a%'\"")
    try:
        return _convert(parsed[0])
    except ExpressionError as error:
        raise ExpressionError(f"in {text!r}: {error}") from error
    except RecursionError as error:
        raise ExpressionError(f"the expression {text[:60]!r}... is nested too deeply") from error


def _parse_trees(text: str) -> list[Any]:
    try:
        return [tree for tree in _LanceSql().parse(text) if tree is not None]
    except ParseError:
        quoted = _quote_keywords(text)
        if quoted == text:
            raise
        return [tree for tree in _LanceSql().parse(quoted) if tree is not None]


def _quote_keywords(text: str) -> str:
    """Return the text with backticks around keywords before a dot, as in `outer.a`, which are names."""
    words = list(_LanceSql().tokenize(text))
    for word, after in reversed(list(itertools.pairwise(words))):
        is_name = after.token_type.name == "DOT" and word.end + 1 == after.start
        if is_name and word.token_type.name != "VAR" and text[word.start : word.end + 1].isidentifier():
            text = f"{text[: word.start]}`{text[word.start : word.end + 1]}`{text[word.end + 1 :]}"
    return text


def _problem(error: Exception) -> str:
    """Return a parser's error message in one line, without class names."""
    problems = error.errors if isinstance(error, ParseError) else []
    if not problems:
        return " ".join(str(error).split())
    what = str(problems[0]["description"]).partition("/")[0].strip()
    mark = str(problems[0]["highlight"])
    place = f"{mark!r}, line {problems[0]['line']}, column {problems[0]['col']}"
    if mark in _SYNTAX_HINTS:
        return f"{place} is not understood: {_SYNTAX_HINTS[mark]}"
    if "<" in what:
        what = "something is missing"
    if what.startswith("Expecting "):
        what = f"{what.removeprefix('Expecting ')!r} is missing"
    return f"{what} at {place}"


# The text at an error of syntax -> what to write.
_SYNTAX_HINTS = {
    "&&": "write `and`",
    "||": "write `or`",
    ",": "write one condition, and a list in parentheses, as in `id in (1, 2)`",
}
_TYPE_NAMES = ("int", "bigint", "smallint", "float", "double", "string", "boolean", "date", "timestamp")


def _convert(node: Any) -> Expression:
    marks = {
        name for name, value in node.args.items() if value and not isinstance(value, exp.Expression | list)
    }
    if marks - _MARKS:
        raise ExpressionError(f"{node.sql()!r}: {', '.join(sorted(marks - _MARKS))} is not supported")
    if node.args.get("negate"):
        plain = node.copy()
        plain.set("negate", None)
        return _call("not", [_convert(plain)])
    convert = _NODES.get(type(node))
    if convert is not None:
        return convert(node)
    name = _OPERATORS.get(type(node))
    if name is not None:
        return _call(name, [_convert(child) for child in _children(node)])
    if isinstance(node, exp.Func):
        return _function(node)
    raise ExpressionError(f"{node.sql()!r} ({type(node).__name__}) is not supported")


def _children(node: exp.Expression) -> list[exp.Expression]:
    """Return a node's operands in the order in which they are written."""
    children: list[exp.Expression] = []
    for name in node.arg_types:
        value = node.args.get(name)
        values = value if isinstance(value, list) else [value]
        children += [child for child in values if isinstance(child, exp.Expression)]
    return children


def _call(name: str, arguments: list[Expression]) -> Call:
    function = FUNCTIONS[name]
    if not function.least <= len(arguments) <= function.most:
        raise ExpressionError(f"{name} does not take {len(arguments)} arguments")
    if name in _CONNECTIVES:
        arguments = [as_condition(argument) for argument in arguments]
    return Call(name, tuple(arguments))


def as_condition(node: Expression) -> Expression:
    """Return an expression as a condition: for a match of a regular expression, whether there is one."""
    if isinstance(node, Call) and node.function == "regexp_match":
        return Call("not", (Call("is_null", (node,)),))
    return node


def _function(node: Any) -> Expression:
    name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
    name = name.lower()
    name = _ALIASES.get(name, name)
    if name in _CASTS and len(node.expressions) == 1:
        return _to_type(_convert(node.expressions[0]), _CASTS[name])
    if name == "arrow_cast":
        return _arrow_cast(node.expressions)
    if name not in FUNCTIONS or name in _INTERNAL:
        raise ExpressionError(
            f"the function {name} is not supported{suggestion(name, FUNCTIONS.keys() - _INTERNAL)}"
        )
    children = node.expressions if isinstance(node, exp.Anonymous) else _children(node)
    return _call(name, [_convert(child) for child in children])


def _column(node: exp.Column) -> Expression:
    if not isinstance(node.this, exp.Identifier):
        raise ExpressionError(f"{node.sql()!r} is not supported")
    return Column(tuple(part.name for part in node.parts))


def _field_of(node: exp.Dot) -> Expression:
    base = _convert(node.this)
    if isinstance(base, Column):
        return Column((*base.path, node.expression.name))
    return _call("element", [base, Literal(node.expression.name)])


def _bracket(node: exp.Bracket) -> Expression:
    if len(node.expressions) != 1:
        raise ExpressionError(f"{node.sql()!r}: one position is needed")
    base, position = _convert(node.this), _convert(node.expressions[0])
    if isinstance(base, Column) and isinstance(position, Literal) and isinstance(position.value, str):
        return Column((*base.path, position.value))
    return _call("element", [base, position])


def _literal(node: exp.Literal) -> Expression:
    text = str(node.this)
    if node.is_string:
        return Literal(text)
    if text.isdigit():
        return Literal(int(text))
    if "e" in text.lower():
        return Literal(float(text))
    try:
        return Literal(Decimal(text))
    except InvalidOperation as error:
        raise ExpressionError(f"{text!r} is not a number") from error


def _negative(node: exp.Neg) -> Expression:
    value = _convert(node.this)
    if isinstance(value, Literal) and isinstance(value.value, int | float | Decimal):
        return Literal(-value.value)
    return _call("negate", [value])


def _cast(node: exp.Cast) -> Expression:
    if isinstance(node, exp.TryCast):
        return Cast(_convert(node.this), _type(node.to), or_null=True)
    return _to_type(_convert(node.this), _type(node.to))


def _arrow_cast(arguments: list[Any]) -> Expression:
    if len(arguments) != 2 or not isinstance(name := _convert(arguments[1]), Literal):
        raise ExpressionError("arrow_cast takes a value and the name of a type, such as 'Int8'")
    return _to_type(_convert(arguments[0]), arrow_type(str(name.value)))


def _to_type(value: Expression, target: pa.DataType) -> Expression:
    if isinstance(value, Literal) and isinstance(value.value, str) and pa.types.is_temporal(target):
        return Cast(Literal(_instant(value.value, target)), target)
    return Cast(value, target)


def _instant(text: str, target: pa.DataType) -> Any:
    try:
        if pa.types.is_date(target):
            return datetime.date.fromisoformat(text.strip())
        if pa.types.is_timestamp(target):
            value = parse_moment(text)
            return value.astimezone(datetime.timezone.utc).replace(tzinfo=None) if value.tzinfo else value
    except ValueError as error:
        raise ExpressionError(f"{text!r} is not a {target}: {error}") from error
    return text


def _type(node: exp.DataType) -> pa.DataType:
    name = node.this.value
    sizes = [int(param.name) for param in node.expressions if isinstance(param, exp.DataTypeParam)]
    if name == "DECIMAL" and len(sizes) in (1, 2):
        return pa.decimal128(sizes[0], sizes[1] if len(sizes) == 2 else 0)
    if name not in SQL_TYPES:
        name = node.sql()
        hint = suggestion(name, _TYPE_NAMES) or "; use a type such as int, bigint, double, string or date"
        raise ExpressionError(f"the type {name} is not supported{hint}")
    return SQL_TYPES[name]


def _chain(name: str) -> Callable[[Any], Expression]:
    # a and b and c is one call, so that long chains do not nest.
    return lambda node: _call(name, [_convert(part) for part in node.flatten()])


def _between(node: exp.Between) -> Expression:
    value = _convert(node.this)
    low, high = _convert(node.args["low"]), _convert(node.args["high"])
    return _call("and", [_call(">=", [value, low]), _call("<=", [value, high])])


def _in(node: exp.In) -> Expression:
    if node.args.get("query") or node.args.get("unnest") or node.args.get("field"):
        raise ExpressionError("in needs a list of values")
    return _call("in", [_convert(node.this), *(_convert(option) for option in node.expressions)])


def _is(node: exp.Is) -> Expression:
    value, other = _convert(node.this), node.expression
    if isinstance(other, exp.Null):
        return _call("is_null", [value])
    if isinstance(other, exp.Boolean):
        return _call("is_same", [value, Literal(bool(other.this))])
    raise ExpressionError(f"{node.sql()!r}: only is null, is true and is false are supported")


def _case(node: exp.Case) -> Expression:
    parts: list[Expression] = []
    for branch in node.args["ifs"]:
        condition = _convert(branch.this)
        if node.this is not None:
            condition = _call("=", [_convert(node.this), condition])
        parts += [condition, _convert(branch.args["true"])]
    default = node.args.get("default")
    return _call("case", [*parts, Literal(None) if default is None else _convert(default)])


def _if(node: exp.If) -> Expression:
    other = node.args.get("false")
    parts = [_convert(node.this), _convert(node.args["true"])]
    return _call("case", [*parts, Literal(None) if other is None else _convert(other)])


def _date_trunc(node: Any) -> Expression:
    return _call("date_trunc", [Literal(node.args["unit"].name), _convert(node.this)])


def _trim(node: exp.Trim) -> Expression:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    characters = node.args.get("expression")
    return _call(name, [_convert(node.this)] + ([] if characters is None else [_convert(characters)]))


_NODES: dict[type, Callable[[Any], Expression]] = {
    exp.Paren: lambda node: _convert(node.this),
    exp.TsOrDsToDate: lambda node: _convert(node.this),
    exp.Column: _column,
    exp.Dot: _field_of,
    exp.Bracket: _bracket,
    exp.Literal: _literal,
    exp.HexString: lambda node: Literal(bytes.fromhex(node.name)),
    exp.Boolean: lambda node: Literal(bool(node.this)),
    exp.Null: lambda node: Literal(None),
    exp.Neg: _negative,
    exp.Cast: _cast,
    exp.TryCast: _cast,
    exp.And: _chain("and"),
    exp.Or: _chain("or"),
    exp.Between: _between,
    exp.In: _in,
    exp.Is: _is,
    exp.NullSafeNEQ: lambda node: _call(
        "not", [_call("is_same", [_convert(node.this), _convert(node.expression)])]
    ),
    exp.Case: _case,
    exp.If: _if,
    exp.TimestampTrunc: _date_trunc,
    exp.DateTrunc: _date_trunc,
    exp.Extract: lambda node: _call("date_part", [Literal(node.name), _convert(node.expression)]),
    exp.Trim: _trim,
}
