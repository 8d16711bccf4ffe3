"""Procedures: CALL <catalog>.system.<name>(...), which do what `LanceTable` does.

Every procedure takes the name of a table first, as it stands in SQL ("db.t", "t@dev", a path), and returns rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyspark.sql.types as st

from spark_lance.errors import OptionError
from spark_lance.spark.lance_table.table import LanceTable
from spark_lance.spark.sql.catalogs import Question
from spark_lance.spark.sql.tables import table_at

__all__ = ["PROCEDURES", "Procedure", "call_procedure", "list_procedures", "load_procedure"]


@dataclass(frozen=True)
class Parameter:
    """A parameter of a procedure; without a default it must be given. `default` is SQL."""

    name: str
    type: str
    comment: str
    default: str | None = None


@dataclass(frozen=True)
class Procedure:
    """What a procedure is called with, what it does and what comes back.

    Attributes:
        run: called with the table and the arguments by name; returns a DataFrame, dicts, or None.
        parameters: behind `table`.
        doc: what it does, in a sentence.
    """

    run: Callable[[LanceTable, Mapping[str, Any]], Any]
    parameters: tuple[Parameter, ...]
    doc: str


_TABLE = Parameter("table", "string", "the table, as SQL names it inside of the catalog")


def _texts(value: str | None) -> list[str]:
    return [] if value is None else [part.strip() for part in value.split(",") if part.strip()]


PROCEDURES: dict[str, Procedure] = {
    "compact": Procedure(
        lambda table, a: table.compact_files(
            **({} if a["target_rows"] is None else {"target_rows_per_fragment": a["target_rows"]})
        ),
        (Parameter("target_rows", "bigint", "rows of a file at most", "NULL"),),
        "Put small files together and drop deleted rows.",
    ),
    "vacuum": Procedure(
        lambda table, a: table.vacuum(a["retention_hours"]),
        (Parameter("retention_hours", "double", "versions older than this go", "NULL"),),
        "Delete old versions and the files that only they need.",
    ),
    "restore": Procedure(
        lambda table, a: table.restoreToVersion(a["version"]),
        (Parameter("version", "bigint", "the version to go back to"),),
        "Make an older version the newest one.",
    ),
    "history": Procedure(
        lambda table, a: table.history(a["limit"]),
        (Parameter("limit", "int", "how many of the newest versions", "NULL"),),
        "Tell what each version did.",
    ),
    "create_tag": Procedure(
        lambda table, a: table.tags.create(a["tag"], a["version"]),
        (
            Parameter("tag", "string", "its name"),
            Parameter("version", "bigint", "the newest by default", "NULL"),
        ),
        "Name a version.",
    ),
    "drop_tag": Procedure(
        lambda table, a: table.tags.delete(a["tag"]),
        (Parameter("tag", "string", "its name"),),
        "Delete a tag.",
    ),
    "drop_index": Procedure(
        lambda table, a: table.dropIndex(a["name"]),
        (Parameter("name", "string", "of the index"),),
        "Drop an index.",
    ),
}


def list_procedures(question: Question) -> list[str]:
    """Return the names of all procedures."""
    return sorted(PROCEDURES)


def load_procedure(question: Question) -> dict[str, Any]:
    """Return what Spark has to know of a procedure.

    Raises:
        OptionError: there is none of this name.
    """
    name = question.name[-1].lower()
    if question.name[:-1] != ("system",) or name not in PROCEDURES:
        raise OptionError(
            f"there is no procedure {'.'.join(question.name)}; in {question.catalog.name}.system are "
            f"{', '.join(sorted(PROCEDURES))}"
        )
    procedure = PROCEDURES[name]
    return {
        "name": name,
        "description": procedure.doc,
        "parameters": [
            {
                "name": one.name,
                "type": st._parse_datatype_string(one.type).json(),
                "comment": one.comment,
                "default": one.default,
            }
            for one in (_TABLE, *procedure.parameters)
        ],
    }


def call_procedure(question: Question) -> dict[str, Any]:
    """Run a procedure; return the schema and rows of its result."""
    procedure = PROCEDURES[question.name[-1].lower()]
    names = [one.name for one in (_TABLE, *procedure.parameters)]
    given = dict(zip(names, question.asked["arguments"], strict=True))
    table = table_at(question, _name(str(given.pop("table"))))
    return _rows(procedure.run(table, given))


def _name(text: str) -> tuple[str, ...]:
    return (text,) if "/" in text else tuple(text.split("."))


def _rows(result: Any) -> dict[str, Any]:
    """Return what came back as a schema of simple types and rows; composed values become JSON text."""
    if result is None:
        return {"schema": st.StructType([st.StructField("done", st.BooleanType())]).json(), "rows": [[True]]}
    fields = []
    for field in result.schema.fields:
        simple = isinstance(
            field.dataType,
            (st.LongType, st.IntegerType, st.DoubleType, st.BooleanType, st.StringType),
        )
        fields.append(st.StructField(field.name, field.dataType if simple else st.StringType()))
    rows = [[_plain(value) for value in row] for row in result.collect()]
    return {"schema": st.StructType(fields).json(), "rows": rows}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return json.dumps(value.asDict(True) if hasattr(value, "asDict") else value, default=str)
