"""The kinds of batch reads and their modules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_lance.spark.options.option_fields import ReadOptions
    from spark_lance.table.versions.resolve import VersionRef


class VersionedReader(Protocol):
    """A `DataSourceReader` with the version that it reads."""

    ref: VersionRef


class ReadKind(Protocol):
    """The functions that the module for a kind of read has."""

    def describe(self, options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, StructType]:
        """Return the version of the read, the newest if `ref` is None, and the Spark schema."""

    def reader(self, options: ReadOptions, schema: StructType, ref: VersionRef | None) -> VersionedReader:
        """Return the reader of the columns of `schema`."""


# Kind of read (`ReadOptions.kind`) -> its module, a `ReadKind`.
READ_KINDS = {
    "rows": "spark_lance.spark.scan.rows",
    "metadata": "spark_lance.spark.scan.metadata",
    "changes": "spark_lance.spark.scan.changes",
    "inserted rows": "spark_lance.spark.scan.changes",
    "nearest": "spark_lance.spark.scan.search",
    "fresh": "spark_lance.spark.scan.fresh",
}


def read_kind(options: ReadOptions) -> ReadKind:
    """Return the module for the kind of read that options request. It is imported at its first use."""
    return cast("ReadKind", import_module(READ_KINDS[options.kind]))
