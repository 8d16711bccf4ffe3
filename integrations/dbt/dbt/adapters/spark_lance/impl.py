"""The adapter: what dbt asks of a warehouse, answered by the Lance catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dbt.adapters.__about__ import version as base_version
from dbt.adapters.base import PythonJobHelper, available
from dbt.adapters.base.impl import AdapterTrackingRelationInfo, ConstraintSupport, catch_as_completed
from dbt.adapters.base.relation import BaseRelation
from dbt.adapters.contracts.relation import RelationType
from dbt.adapters.spark.column import SparkColumn
from dbt.adapters.spark.impl import SparkAdapter, SparkConfig
from dbt.adapters.spark_lance.__version__ import version
from dbt.adapters.spark_lance.connections import LanceConnectionManager
from dbt.adapters.spark_lance.relation import LanceRelation
from dbt.adapters.spark_lance.session import lance_session
from dbt_common.clients.agate_helper import DEFAULT_TYPE_TESTER
from dbt_common.contracts.constraints import ConstraintType
from dbt_common.exceptions import DbtRuntimeError
from dbt_common.utils import executor
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql import types as T

if TYPE_CHECKING:
    import agate

__all__ = ["LanceAdapter"]

# Errors of catalogs without views: conditions, and what Lance's catalogs say before Spark 4.2.
_NO_VIEWS = ("MISSING_CATALOG_ABILITY", "UNSUPPORTED_FEATURE", "views in other catalogs from 4.2 on")
_MISSING = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "NAMESPACE_NOT_FOUND")


@dataclass
class LanceConfig(SparkConfig):
    """Settings of a model."""

    file_format: str = "lance"
    tblproperties: dict[str, str] | None = None


class SessionPythonJob(PythonJobHelper):
    """A Python model runs in the process of dbt, in its Spark session."""

    def __init__(self, parsed_model: dict[str, Any], credentials: Any) -> None:
        self._name = parsed_model["alias"]
        self._credentials = credentials

    def submit(self, compiled_code: str) -> None:
        """Run the model's code."""
        names = {"spark": lance_session(self._credentials), "__name__": f"dbt_model_{self._name}"}
        exec(compile(compiled_code, f"{self._name}.py", "exec"), names)


class LanceAdapter(SparkAdapter):
    """The adapter `spark_lance`."""

    Relation = LanceRelation
    ConnectionManager = LanceConnectionManager
    AdapterSpecificConfigs = LanceConfig
    CONSTRAINT_SUPPORT = {  # noqa: RUF012 (the base class has it like this)
        ConstraintType.check: ConstraintSupport.NOT_SUPPORTED,
        ConstraintType.not_null: ConstraintSupport.ENFORCED,
        ConstraintType.unique: ConstraintSupport.NOT_SUPPORTED,
        ConstraintType.primary_key: ConstraintSupport.NOT_SUPPORTED,
        ConstraintType.foreign_key: ConstraintSupport.NOT_SUPPORTED,
    }

    @property
    def _spark(self) -> Any:
        return lance_session(self.config.credentials)

    @classmethod
    def get_adapter_run_info(cls, config: Any) -> AdapterTrackingRelationInfo:
        """Return names and versions; the base class derives the name from that of the class."""
        return AdapterTrackingRelationInfo("spark_lance", base_version, version, {"table_format": "lance"})

    def valid_incremental_strategies(self) -> list[str]:
        """Return the names of the strategies that this adapter has macros for."""
        return ["append", "merge", "delete+insert", "insert_overwrite", "microbatch"]

    @property
    def default_python_submission_method(self) -> str:
        """The only way to run Python models."""
        return "session"

    @property
    def python_submission_helpers(self) -> dict[str, type[PythonJobHelper]]:
        """The ways to run Python models."""
        return {"session": SessionPythonJob}

    def list_relations_without_caching(self, schema_relation: BaseRelation) -> list[BaseRelation]:
        """Return the tables and views of a schema; none if the schema does not exist."""
        name = str(schema_relation.without_identifier())
        views = self._names(f"SHOW VIEWS IN {name}", _NO_VIEWS)
        tables = self._names(f"SHOW TABLES IN {name}", ())
        kinds = dict.fromkeys(tables, RelationType.Table) | dict.fromkeys(views, RelationType.View)
        return [
            self.Relation.create(
                database=schema_relation.database, schema=schema_relation.schema, identifier=name, type=kind
            )
            for name, kind in kinds.items()
        ]

    def _names(self, statement: str, lacking: Sequence[str]) -> list[str]:
        """Return the names that a SHOW statement lists, without temporary views.

        Args:
            statement: SHOW TABLES or SHOW VIEWS.
            lacking: words of the errors of catalogs that do not have such things.
        """
        try:
            rows = self._spark.sql(statement).collect()
        except (AnalysisException, UnsupportedOperationException) as error:
            if any(word in str(error.getCondition() or error) for word in (*_MISSING, *lacking)):
                return []
            raise DbtRuntimeError(str(error)) from error
        # The columns are namespace, name, isTemporary.
        return [row[1] for row in rows if not row[2]]

    @available
    def has_views(self, relation: BaseRelation) -> bool:
        """Whether the catalog of a relation can hold views."""
        try:
            self._spark.sql(f"SHOW VIEWS IN {relation.without_identifier()}").collect()
        except (AnalysisException, UnsupportedOperationException) as error:
            condition = str(error.getCondition() or error)
            if any(word in condition for word in _MISSING):
                return True
            if any(word in condition for word in _NO_VIEWS):
                return False
            raise DbtRuntimeError(str(error)) from error
        return True

    def get_columns_in_relation(self, relation: BaseRelation) -> list[SparkColumn]:
        """Return the columns of a table or view; none if it does not exist."""
        return [
            SparkColumn(
                table_database=relation.database,
                table_schema=relation.schema,
                table_name=relation.identifier,
                table_type=relation.type,
                column=field.name,
                column_index=number,
                dtype=field.dataType.simpleString(),
            )
            for number, field in enumerate(self._fields(relation))
        ]

    def _fields(self, relation: BaseRelation) -> list[T.StructField]:
        try:
            return list(self._spark.table(str(relation)).schema.fields)
        except (AnalysisException, UnsupportedOperationException) as error:
            if any(word in str(error.getCondition() or error) for word in _MISSING):
                return []
            raise DbtRuntimeError(str(error)) from error

    @available
    def changed_comments(self, relation: BaseRelation, columns: dict[str, Any]) -> list[tuple[str, str]]:
        """Return name and new comment of each column whose comment differs from its description.

        Args:
            relation: the table.
            columns: the model's columns by name.
        """
        texts = {name.lower(): column["description"] for name, column in columns.items()}
        return [
            (field.name, texts[field.name.lower()])
            for field in self._fields(relation)
            if texts.get(field.name.lower(), "") not in ("", field.metadata.get("comment", ""))
        ]

    @available
    def nullable_columns(self, relation: BaseRelation) -> list[str]:
        """Return the names of the columns of a table that may contain nulls, in lower case."""
        return [field.name.lower() for field in self._fields(relation) if field.nullable]

    @available
    def relation_comment(self, relation: BaseRelation) -> str:
        """Return the comment of a table, which is empty if it has none."""
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {relation}").collect()
        return next((row[1] or "" for row in rows if row[0] == "Comment"), "")

    @available
    def create_seed_view(self, relation: BaseRelation, seed: agate.Table) -> None:
        """Make a temporary view of the rows of a seed, each value as the text that it has in the file.

        Args:
            relation: the name of the view.
            seed: the rows.
        """
        rows = [tuple(None if value is None else _text(value) for value in row) for row in seed.rows]
        schema = T.StructType([T.StructField(name, T.StringType()) for name in seed.column_names])
        self._spark.createDataFrame(rows, schema).createOrReplaceTempView(relation.identifier)

    def check_schema_exists(self, database: str, schema: str) -> bool:
        """Whether a schema exists."""
        return schema.lower() in (name.lower() for name in self.list_schemas(database))

    def get_catalog(
        self, relation_configs: Iterable[Any], used_schemas: frozenset[tuple[str, str]]
    ) -> tuple[agate.Table, list[Exception]]:
        """Return a row for each column of the tables and views of all schemas, for the documentation."""
        with executor(self.config) as threads:
            futures: list[Future[agate.Table]] = [
                threads.submit_connected(
                    self, schema, self._get_one_catalog, information, {schema}, used_schemas
                )
                for information, schemas in self._get_catalog_schemas(relation_configs).items()
                for schema in schemas
            ]
            table, problems = catch_as_completed(futures)
            return table, problems

    def _get_one_catalog(
        self, information_schema: Any, schemas: set[str], used_schemas: frozenset[tuple[str, str]]
    ) -> agate.Table:
        import agate

        rows = [
            row
            for schema in schemas
            for relation in self.list_relations(information_schema.database, schema)
            for row in self._catalog_rows(relation)
        ]
        return agate.Table.from_object(rows, column_types=DEFAULT_TYPE_TESTER)

    def _catalog_rows(self, relation: BaseRelation) -> list[dict[str, Any]]:
        comment = self.relation_comment(relation)
        return [
            {
                "table_database": relation.database,
                "table_schema": relation.schema,
                "table_name": relation.identifier,
                "table_type": str(relation.type),
                "table_comment": comment,
                "table_owner": None,
                "column_name": field.name,
                "column_index": number,
                "column_type": field.dataType.simpleString(),
                "column_comment": field.metadata.get("comment"),
            }
            for number, field in enumerate(self._fields(relation))
        ]


def _text(value: Any) -> str:
    """Return the text of a value of a seed that Spark casts back to the same value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:f}" if hasattr(value, "as_tuple") else str(value)
