"""CONVERT TO LANCE: the rows of a folder of Parquet files become a Lance table in the same folder.

The rows are copied. The Parquet files are kept: Lance neither reads nor deletes them. A failed conversion
leaves an empty table; the next conversion continues and adds the rows once. If the driver died, its files are
in the folder, and Spark refuses to read partition folders next to them until they are deleted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyspark.sql.types as st

from spark_lance.errors import OptionError, TableExistsError, UnsupportedFormatError
from spark_lance.io.store import open_store
from spark_lance.spark.options.options import write_options
from spark_lance.spark.table.builder import TableBuilder
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.write_plan import find_latest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES = re.compile(r"\s*(\w+)\.`(.*)`\s*")
_FOLDER = re.compile(r"/([^/=]+)=[^/]*(?=/)")
# Retries and concurrent conversions write the rows only once.
_IDEMPOTENT_WRITE = {"txnAppId": "spark_lance.convert", "txnVersion": "1"}


def convert_files(spark: SparkSession, source: str, partitions: st.StructType | str | None = None) -> str:
    """Create a Lance table from the Parquet files in a folder, and return the folder.

    Args:
        spark: the session.
        source: such as "parquet.`/data/events`".
        partitions: partition columns in the subfolder names, with their types, such as "day date".

    Raises:
        UnsupportedFormatError: the source is not a folder of Parquet files.
        TableExistsError: the folder already has a Lance table.
        OptionError: the subfolders have other partition columns.
    """
    match = _FILES.fullmatch(source)
    if match is None or match[1].lower() != "parquet":
        raise UnsupportedFormatError(
            f"only a folder of Parquet files is converted in its place, parquet.`/path`: for {source} write "
            f"CREATE TABLE lance.`<new path>` AS SELECT * FROM {source}"
        )
    path = match[2].replace("``", "`").rstrip("/")
    options = write_options({"path": path})
    store, root = open_store(options.path, options.storage)
    existing = find_latest(TableRef(store, root))
    if existing is not None and (existing.version > 1 or existing.fragments):
        raise TableExistsError(
            f"{path} is a Lance table already: to add rows of other files, write CALL "
            f"<catalog>.system.add_files(table => '`{path}`', source_table => 'parquet.`<path>`')"
        )
    rows, columns = _read_files(spark, path, partitions)
    if existing is None:
        builder = TableBuilder(spark, "create_if_not_exists", lambda *_: None)
        builder.in_place = True
        builder.location(path).addColumns(rows.schema).partitionedBy(*map(_quoted, columns)).execute()
    rows.write.format("lance").options(**_IDEMPOTENT_WRITE).mode("append").save(path)
    return path


def _read_files(
    spark: SparkSession, path: str, partitions: st.StructType | str | None
) -> tuple[DataFrame, list[str]]:
    """Return the rows of the files, and the partition columns of their folders."""
    frame = spark.read.parquet(path)
    folders = list(dict.fromkeys(n for file in frame.inputFiles() for n in _FOLDER.findall(file)))
    # Folders above the table are not partitions.
    folders = [name for name in folders if name.lower() in {column.lower() for column in frame.columns}]
    if partitions is None:
        partition_schema = st.StructType()
    elif isinstance(partitions, st.StructType):
        partition_schema = partitions
    else:
        partition_schema = spark.createDataFrame([], partitions).schema
    if [name.lower() for name in partition_schema.names] != [name.lower() for name in folders]:
        schema = ", ".join(
            f"{column.name} {column.dataType.simpleString()}"
            for name in folders
            for column in frame.schema
            if column.name.lower() == name.lower()
        )
        remedy = f"write PARTITIONED BY ({schema})" if folders else "leave out PARTITIONED BY"
        raise OptionError(
            f"the folders of parquet.`{path}` have the partition columns {', '.join(folders) or 'none'}, not "
            f"{', '.join(partition_schema.names) or 'none'}: {remedy}"
        )
    if not folders:
        return frame, []
    names = {name.lower() for name in folders}
    data = [column for column in frame.schema if column.name.lower() not in names]
    return spark.read.schema(st.StructType([*data, *partition_schema.fields])).parquet(
        path
    ), partition_schema.names


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
