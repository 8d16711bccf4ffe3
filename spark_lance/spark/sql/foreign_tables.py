"""Tables that get a name: snapshot and migrate copy tables of other formats, register_table does not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from spark_lance.errors import OptionError, TableExistsError, UnsupportedFormatError
from spark_lance.spark.sql.catalogs import BridgeRequest, catalog_name, is_path
from spark_lance.spark.sql.procedure import current_namespace
from spark_lance.spark.table.expressions import quoted
from spark_lance.spark.table.table import LanceTable

if TYPE_CHECKING:
    from spark_lance.catalog.directory import DirectoryCatalog


def source_rows(request: BridgeRequest, source: str) -> DataFrame:
    """Return the rows of a table of any catalog, or of files: parquet.`/path`."""
    return request.spark.sql(f"SELECT * FROM {source.strip()}")


def _joined(parts: Sequence[str]) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)


def _check_files(procedure: str, arguments: Mapping[str, Any]) -> None:
    if arguments["ignore_missing_files"]:
        raise OptionError(
            f"{procedure} reads what Spark reads: SET spark.sql.files.ignoreMissingFiles=true, and leave out "
            "ignore_missing_files"
        )


def snapshot_table(request: BridgeRequest, _: None, arguments: Mapping[str, Any]) -> DataFrame:
    """Copy the rows of a table to a new Lance table, and return the number of files that had them."""
    _check_files("snapshot", arguments)
    if arguments["location"] is not None:
        raise OptionError(
            f"catalog {request.catalog.name} chooses where its tables are: leave out location, or name a "
            f"path as the table, table => '{arguments['location']}'"
        )
    source = source_rows(request, arguments["source_table"])
    files = len(source.inputFiles())
    target = catalog_name(request.catalog, arguments["table"], current_namespace(request))
    writer = source.writeTo(_joined([request.catalog.name, *target])).using("lance")
    for name, value in (arguments["properties"] or {}).items():
        writer = writer.tableProperty(name, value)
    writer.create()
    return request.spark.createDataFrame([(files,)], "imported_files_count bigint")


def migrate_table(request: BridgeRequest, _: None, arguments: Mapping[str, Any]) -> DataFrame:
    """Replace a table of spark_catalog by a Lance table, and return the number of files that had its rows.

    The rows are copied before the names change, and a failure leaves the old table under its name.
    """
    owner, table = request.catalog.name, arguments["table"]
    if request.catalog.session is None:
        name = table.removeprefix("spark_catalog.").removeprefix(f"{owner}.")
        raise UnsupportedFormatError(
            "migrate replaces a table of spark_catalog: write spark_lance.enable(spark, "
            f"catalog='spark_catalog'), and CALL spark_catalog.system.migrate('{name}'); or CALL "
            f"{owner}.system.snapshot('spark_catalog.{name}', '{name}'), and then "
            f"DROP TABLE spark_catalog.{name}"
        )
    _check_files("migrate", arguments)
    spark = request.spark
    *namespace, last = catalog_name(request.catalog, table, current_namespace(request))
    old = _joined([owner, *namespace, last])
    files = _source_files(request, table, old)
    copy, backup = f"{last}_lance_copy_", f"{last}_BACKUP_"
    if arguments["backup_table_name"] is not None:
        backup = arguments["backup_table_name"].split(".")[-1].strip("`")
    partitions = [
        f.col(quoted(column.name)) for column in spark.catalog.listColumns(old) if column.isPartition
    ]
    writer = spark.table(old).writeTo(_joined([owner, *namespace, copy])).using("lance")
    writer = writer.partitionedBy(*partitions) if partitions else writer
    for name, value in (arguments["properties"] or {}).items():
        writer = writer.tableProperty(name, value)
    writer.create()

    def rename(source: str, target: str) -> None:
        # Spark takes no catalog in the new name of a table of its own catalog.
        names = _joined([owner, *namespace, source]), _joined([*namespace, target])
        spark.sql(f"ALTER TABLE {names[0]} RENAME TO {names[1]}")

    try:
        if _source_files(request, table, old) != files:
            raise OptionError(f"{table} has changed while migrate copied it: call migrate again")
        rename(last, backup)
        try:
            rename(copy, last)
        except Exception:
            rename(backup, last)
            raise
    except Exception:
        spark.sql(f"DROP TABLE {_joined([owner, *namespace, copy])}")
        raise
    if arguments["drop_backup"]:
        spark.sql(f"DROP TABLE {_joined([owner, *namespace, backup])}")
    return spark.createDataFrame([(len(files),)], "migrated_files_count bigint")


def _source_files(request: BridgeRequest, table: str, name: str) -> list[str]:
    """Return the files of a table, which must not be a view or a Lance table."""
    spark = request.spark
    description = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    details = {row.col_name: row.data_type for row in description}
    is_view = details.get("Type") == "VIEW"
    if is_view or str(details.get("Provider")).lower() == "lance":
        kind = "view" if is_view else "Lance table"
        raise OptionError(f"{table} is a {kind}: name a table of another format, such as Parquet")
    spark.catalog.refreshTable(name)
    return sorted(spark.table(name).inputFiles())


def register_table(request: BridgeRequest, _: None, arguments: Mapping[str, Any]) -> DataFrame:
    """Give a name in a catalog to a table that exists, and return its version and its counts."""
    catalog = request.catalog
    name = catalog_name(catalog, arguments["table"], current_namespace(request))
    location = re.sub(r"/(?:metadata|_versions)/[^/]*$", "", str(arguments["metadata_file"])).rstrip("/")
    table = LanceTable.forPath(request.spark, location)
    if is_path(name) or (catalog.root is None and catalog.session is None):
        raise OptionError(f"catalog {catalog.name} registers names of tables: table => 'db.t'")
    detail = table.detail().first()
    assert detail is not None
    if catalog.session is not None:
        catalog.registry.check_free(name)
        catalog.registry.register(name, table.path, external=True, is_new=False)
    else:
        assert catalog.root is not None
        names = cast("DirectoryCatalog", catalog.names)
        try:
            names.register(name, _relative_location(catalog.root, location), {})
        except TableExistsError as error:
            table_name = ".".join((catalog.name, *name))
            raise TableExistsError(f"{error}: use another name, or DROP TABLE {table_name} first") from None
    return request.spark.createDataFrame(
        [(detail.version, detail.numRows, detail.numFiles)],
        "current_snapshot_id bigint, total_records_count bigint, total_data_files_count bigint",
    )


def _relative_location(root: str, location: str) -> str:
    head = root.rstrip("/") + "/"
    if not location.startswith(head):
        raise OptionError(
            f"{location} is not below the catalog's root {root}: move it there, or name the path in place "
            f"of a table, as in SELECT * FROM lance.`{location}`"
        )
    return location[len(head) :]
