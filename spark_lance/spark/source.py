"""The PySpark data source `lance`.

Spark creates instances of this class in worker processes of the driver. One finds the schema; Spark then
pickles it and sends it to the process that plans the read. Each write has an instance of its own. The class
therefore keeps only options, and imports modules that need Arrow at their first use. Spark imports this
module in every session of a machine that has the package, even if the session never uses Lance.
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

    The version of a read is fixed when Spark creates the DataFrame. In a classic session that is `load`. In
    Spark Connect it is the first use, and the version stays as long as the server remembers the plan. With a
    user-defined schema (`.schema(...)`) Spark does not call the source before the first action, so this
    action fixes the version unless option `version` does. If the first action is a self-join, Spark plans the
    two sides separately: option `columns` or `version` fixes one version for both.
    `spark_lance.spark.options.options.OPTIONS` lists the options.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)  # type: ignore[arg-type]
        self._ref: VersionRef | None = None

    @classmethod
    def name(cls) -> str:
        """Return "lance", the name of the format."""
        return "lance"

    def schema(self) -> StructType:
        """Return the Spark schema of the requested columns, and fix the version of the read."""
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
        """Return the writer that appends rows of `schema` to the table, or overwrites it with them."""
        from spark_lance.spark.sink.write import LanceWriter

        with one_line():
            return LanceWriter(write_options(self.options, overwrite), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer that appends micro-batches to the table, or overwrites it with each of them."""
        from spark_lance.spark.streaming.write import stream_writer

        with one_line():
            return stream_writer(write_options(self.options, overwrite), schema, overwrite)

    def __getstate__(self) -> dict[str, Any]:
        """Fix the version before Spark copies this instance to the processes that plan reads.

        With a user-defined schema nothing else runs before pickling, and one instance may serve several
        plans. Errors are ignored here because `reader` raises them again: an error raised while pickling
        would hide its cause.
        """
        if self._ref is None and "path" in self.options:
            from spark_lance.spark.scan.rows import pin

            try:
                self._ref = pin(read_options(self.options))
            except (LanceError, OSError):
                self._ref = None
        return self.__dict__
