"""The PySpark data source `lance`.

Spark makes instances of this class in worker processes of the driver: one to find the schema, which it then
pickles and sends to the process that plans a read, and one per write. The class therefore keeps options
only, and imports what works with Arrow when it is asked for it: this module is imported in every Spark
session of a machine that has the package, whether Lance is used or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource

from spark_lance.errors import LanceError
from spark_lance.spark.options.options import check_batch, read_options, write_options
from spark_lance.spark.scan.kinds import read_kind
from spark_lance.spark.worker.failures import one_line

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from spark_lance.spark.sink.write import LanceWriter
    from spark_lance.table.versions.resolve import VersionRef

__all__ = ["LanceDataSource"]


class LanceDataSource(DataSource):
    """Lance tables as `spark.read.format("lance")` and `df.write.format("lance")`.

    The version that a read sees is fixed when Spark makes the DataFrame: by `load` in a classic session, by
    the first use in Spark Connect, as long as the server remembers the plan. With a schema of the user's own
    (`.schema(...)`) Spark does not ask the source before the first action; then that fixes the version,
    unless option `version` does. (Two sides of a self-join that is this first action are planned apart:
    option `columns` or `version` pins them both.)
    Options are listed in `spark_lance.spark.options.options.OPTIONS`.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self._ref: VersionRef | None = None

    @classmethod
    def name(cls) -> str:
        """Return "lance", the name of the format."""
        return "lance"

    def schema(self) -> StructType:
        """Return the Spark schema of the columns asked for, and fix the version that is read."""
        with one_line():
            options = read_options(self.options)
            self._ref, schema = read_kind(options).describe(options, self._ref)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the columns of `schema`."""
        with one_line():
            options = read_options(self.options)
            check_batch(options)
            reader = read_kind(options).reader(options, schema, self._ref)
        self._ref = reader.ref
        return cast("DataSourceReader", reader)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of the columns of `schema` for a stream."""
        from spark_lance.spark.streaming.read import FailedStreamReader, LanceStreamReader

        try:
            return LanceStreamReader(read_options(self.options), schema, self._ref)
        except (LanceError, OSError) as error:
            return FailedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> LanceWriter:
        """Return the writer of rows of `schema`, which are appended to the table or take its place."""
        from spark_lance.spark.sink.write import LanceWriter

        with one_line():
            return LanceWriter(write_options(self.options, overwrite), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of micro-batches, which are appended or take the place of the table's content."""
        from spark_lance.spark.streaming.write import stream_writer

        with one_line():
            return stream_writer(write_options(self.options, overwrite), schema, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Fix the version before Spark copies this instance to the processes that plan reads.

        With a schema of the user's own nothing else runs before that, and one instance may serve several
        plans. Failures are left to `reader`, which meets them again: an error raised while pickling would
        hide its cause.
        """
        if self._ref is None and "path" in self.options:
            from spark_lance.spark.scan.rows import pin

            try:
                self._ref = pin(read_options(self.options))
            except (LanceError, OSError):
                self._ref = None
        return self.__dict__
