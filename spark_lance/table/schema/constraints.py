"""Constraints of a table: CHECK conditions and informational keys.

They are settings of the table. Other engines ignore them: their writers do not check them.

    spark_lance.constraints.<name>    {"type": "check", "expression": "a > 0", "columns": ["a"], ...}

A row violates a CHECK if the expression is false; null is not a violation. The text is Spark SQL. Keys
(`primary_key`, `unique`, `foreign_key`) are informational: nobody checks them.

This package evaluates expressions for which it has the same result as Spark (`own_condition`): comparisons,
IN, BETWEEN, LIKE and IS NULL of columns with literals or columns of the same family of types, with AND, OR
and NOT. All others need Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ConstraintError, ExpressionError, FormatError
from spark_lance.expressions.expressions import Call, Cast, Column, Expression, Literal, bind, column_type
from spark_lance.expressions.predicate import Condition, compile_tree
from spark_lance.file.base.schema import Schema
from spark_lance.io.stored_json import parse_json
from spark_lance.table.format.reserved_names import CONSTRAINTS
from spark_lance.table.schema.defaults import generation_columns, generation_sql

CHECK = "check"
PRIMARY_KEY = "primary_key"
# The condition that a generated column has its computed value. It is never stored as a setting.
GENERATED = "generated"
_TYPES = ("check", "primary_key", "unique", "foreign_key")
_NAME = re.compile(r"[\w .-]{1,128}")
# Text that SQL parsers interpret differently: escapes, double quotes and comments.
_AMBIGUOUS = re.compile(r"[\\\"]|--|/\*")
# Spark functions that can call any JVM method, and `identifier`, which calls a function by name. The author
# of a table is not trusted, so an expression with one of these names is refused.
_UNSAFE_FUNCTIONS = re.compile(r"\b(reflect|try_reflect|java_method|identifier)\b", re.IGNORECASE)
_WORD = re.compile(r"`((?:[^`]|``)+)`|'(?:[^'\\]|\\.|'')*'|([^\W\d]\w*)\b(?!\s*\()")
_COMPARISONS = frozenset({"=", "!=", "<", "<=", ">", ">=", "is_same"})
_CONNECTIVES = frozenset({"and", "or", "not"})
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_DIGITS = 18


@dataclass(frozen=True)
class Constraint:
    """A constraint of a table.

    Attributes:
        name: the name; unique in the table, ignoring case.
        type: "check", "primary_key", "unique" or "foreign_key".
        expression: the SQL of a CHECK.
        columns: the top-level columns that it reads, or the columns of the key.
        enforced: whether writers check it; only a CHECK can be enforced.
        rely: whether optimizers may assume that an unenforced constraint holds.
        table, references: the table and the columns that a foreign key refers to.
    """

    name: str
    type: str
    expression: str | None = None
    columns: tuple[str, ...] = ()
    enforced: bool = False
    rely: bool = False
    table: tuple[str, ...] = ()
    references: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, values: Mapping[str, Any]) -> Constraint:
        """Return a constraint from the values of its setting or of a statement.

        Raises:
            FormatError: this release does not know such a constraint.
            ConstraintError: the expression may call JVM methods.
        """
        try:
            lists = {key: tuple(values.get(key) or ()) for key in ("columns", "references", "table")}
            result = cls(name, **{**values, **lists})
            if result.type not in _TYPES or (result.type == CHECK and not isinstance(result.expression, str)):
                raise ValueError(result.type)
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(
                f"{CONSTRAINTS}{name} is no constraint that this release knows: {str(values)[:80]}"
            ) from error
        if result.type == CHECK:
            check_calls(name, str(result.expression))
        return result

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name, with JSON types."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()
        }

    @property
    def is_checked(self) -> bool:
        """Whether writers check the constraint."""
        return self.type in (CHECK, GENERATED) and self.enforced

    @property
    def sql(self) -> str:
        """The constraint in the syntax of CREATE TABLE, without its name."""
        columns = ", ".join(f"`{name}`" for name in self.columns)
        text = {
            "check": f"CHECK ({self.expression})",
            "generated": f"CHECK ({self.expression})",
            "primary_key": f"PRIMARY KEY ({columns})",
            "unique": f"UNIQUE ({columns})",
            "foreign_key": f"FOREIGN KEY ({columns}) REFERENCES {'.'.join(self.table)} "
            f"({', '.join(f'`{name}`' for name in self.references)})",
        }[self.type]
        return f"{text}{' ENFORCED' if self.enforced else ' NOT ENFORCED'}{' RELY' if self.rely else ''}"


def check_calls(name: str, expression: str) -> None:
    """Refuse an expression that may call JVM methods.

    Raises:
        ConstraintError: the expression has the name of such a function.
    """
    if match := _UNSAFE_FUNCTIONS.search(expression):
        raise ConstraintError(
            f"constraint {name} ({expression[:80]}) may call code by {match[0]!r}: use columns, literals and "
            "other functions"
        )


def constraint_setting(constraint: Constraint) -> tuple[str, str]:
    """Return the key and the value of a constraint's setting.

    Raises:
        ConstraintError: the name is invalid.
    """
    if not _NAME.fullmatch(constraint.name):
        raise ConstraintError(
            f"{constraint.name!r} cannot be the name of a constraint: use up to 128 letters, digits, "
            "spaces, '_', '.' and '-'"
        )
    values = {key: value for key, value in asdict(constraint).items() if value and key != "name"}
    return CONSTRAINTS + constraint.name, json.dumps(values)


def table_constraints(config: Mapping[str, str]) -> tuple[Constraint, ...]:
    """Return the constraints in the settings of a table, sorted by name.

    Raises:
        FormatError: a setting is not a constraint that this release knows.
    """
    keys = sorted(key for key in config if key.startswith(CONSTRAINTS))
    return tuple(_parse_constraint(key.removeprefix(CONSTRAINTS), config[key]) for key in keys)


def find_constraint(config: Mapping[str, str], name: str) -> Constraint | None:
    """Return the constraint with a name, ignoring case; None if there is none."""
    folded = name.lower()
    return next((one for one in table_constraints(config) if one.name.lower() == folded), None)


def _parse_constraint(name: str, text: str) -> Constraint:
    try:
        values = parse_json(text)
    except ValueError as error:
        raise FormatError(f"the setting {CONSTRAINTS}{name} is no JSON: {text[:80]!r}") from error
    return Constraint.of(name, values if isinstance(values, dict) else {"type": values})


def generated_constraints(schema: Schema) -> tuple[Constraint, ...]:
    """Return a constraint for each generated column: the column has its computed value."""
    return tuple(
        Constraint(
            field.name,
            GENERATED,
            f"`{field.name.replace('`', '``')}` <=> ({sql})",
            (field.name, *generation_columns(field)),
            enforced=True,
        )
        for field in schema.fields
        if (sql := generation_sql(field)) is not None
    )


def column_names(expression: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the table's columns whose names occur in an expression.

    The result may include columns that the expression does not read, such as a column with the name of a
    nested field. Names before a parenthesis are functions and do not count.
    """
    words = {(quoted or word).replace("``", "`").lower() for quoted, word in _WORD.findall(expression)}
    return tuple(name for name in names if name.lower() in words)


def comparable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema for `own_condition`: all floats are doubles, like Spark's literals."""
    fields = [
        field.with_type(pa.float64()) if pa.types.is_floating(field.type) else field for field in schema
    ]
    return pa.schema(fields)


def comparable(table: pa.Table) -> pa.Table:
    """Return rows in `comparable_schema`, with normalized NaN and zero, as in Spark's comparisons."""
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            values = pc.cast(table.column(place), pa.float64())
            values = pc.if_else(pc.is_nan(values), float("nan"), values)
            values = pc.if_else(pc.equal(values, 0.0), 0.0, values)
            table = table.set_column(place, field.with_type(pa.float64()), values)
    return table


def own_condition(expression: str, schema: pa.Schema) -> Condition | None:
    """Return an expression as a condition on rows in `comparable_schema`; None if it needs Spark.

    Args:
        expression: Spark SQL.
        schema: the columns of the table.
    """
    from spark_lance.expressions.sql import parse_sql

    if _AMBIGUOUS.search(expression):
        return None
    names = [name.lower() for name in schema.names]
    if len(set(names)) < len(names):
        return None
    schema = comparable_schema(schema)
    try:
        tree = bind(parse_sql(expression), schema)
        return compile_tree(tree, schema) if _is_exact(tree, schema) else None
    except (ExpressionError, KeyError, pa.ArrowException):
        return None


def _is_exact(node: Expression, schema: pa.Schema) -> bool:
    """Return whether a condition has the same result here as in Spark."""
    if isinstance(node, Column):
        return bool(pa.types.is_boolean(column_type(node, schema)))
    if not isinstance(node, Call):
        return False
    arguments = node.arguments
    if node.function in _CONNECTIVES:
        return all(_is_exact(part, schema) for part in arguments)
    if node.function == "is_null":
        return isinstance(arguments[0], Column)
    families = [_family(part, schema) for part in arguments]
    if node.function == "like":
        return families == ["text", "text"] and isinstance(arguments[1], Literal)
    if node.function not in (*_COMPARISONS, "in") or None in families:
        return False
    if not any(isinstance(part, (Column, Call)) for part in arguments):
        return False
    if node.function == "in" and any(isinstance(part, (Column, Call)) for part in arguments[1:]):
        return False
    return _families_match(arguments, {str(family) for family in families}, schema)


def _families_match(arguments: tuple[Expression, ...], families: set[str], schema: pa.Schema) -> bool:
    """Return whether values of these families compare as in Spark."""
    if len(families) == 1:
        kinds = {column_type(part, schema) for part in arguments if isinstance(part, Column)}
        return len(kinds) == 1 or families == {"integer"} or not kinds
    # A column of numbers with literals of other numbers.
    columns = {_family(part, schema) for part in arguments if not isinstance(part, Literal)}
    literals = {_family(part, schema) for part in arguments if isinstance(part, Literal)}
    if columns == {"double"}:
        return literals <= {"integer", "decimal", "double"}
    return columns == {"decimal"} and literals <= {"integer", "decimal"}


def _family(node: Expression, schema: pa.Schema) -> str | None:
    """Return the type family of a comparison operand; None if Spark may compare it differently."""
    if isinstance(node, Column):
        return _column_family(node, schema)
    if isinstance(node, Call) and node.function == "length" and isinstance(node.arguments[0], Column):
        return "integer" if _family(node.arguments[0], schema) == "text" else None
    if isinstance(node, Cast):
        is_date = node.type == pa.date32() and isinstance(node.argument, Literal)
        return "date" if is_date and not node.or_null else None
    if not isinstance(node, Literal):
        return None
    value = node.value
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if abs(value) < 1 << 63 else None
    if isinstance(value, Decimal):
        return "decimal" if len(value.as_tuple().digits) <= _DIGITS else None
    return "double" if isinstance(value, float) else "text" if isinstance(value, str) else None


def _column_family(column: Column, schema: pa.Schema) -> str | None:
    kind = column_type(column, schema)
    if kind in _INTEGERS:
        return "integer"
    if kind == pa.bool_():
        return "boolean"
    if kind == pa.date32():
        return "date"
    if pa.types.is_decimal128(kind):
        return "decimal" if kind.precision <= _DIGITS else None
    if len(column.path) > 1:
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # CHAR(n) and collations have different comparison rules.
        metadata = schema.field(column.path[0]).metadata or {}
        plain = metadata.get(b"spark.string-type", b"varchar").startswith(b"varchar")
        return "text" if plain and b"ARROW:extension:name" not in metadata else None
    return "double" if kind == pa.float64() else None
