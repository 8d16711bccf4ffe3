"""The write of new rows in a Spark task: all that a worker process loads for it.

A worker may be started for one query and end with it, and it imports its modules then. So this module needs
nothing of planning and committing: no version, no conflict, no option.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.spark.failures import one_line
from spark_lance.spark.schema.string_types import DeclaredTypeChecks
from spark_lance.spark.schema.variants import with_variant_texts
from spark_lance.spark.workers import forget_archives, keep_worker_ready
from spark_lance.table.format.table_ref import OfTable, TableRef
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.write import write_fragments

if TYPE_CHECKING:
    from spark_lance.table.inserts.replace_rows import RowCheck

__all__ = ["LanceCommitMessage", "WrittenRows"]


@dataclass(frozen=True)
class LanceCommitMessage(WriterCommitMessage):
    """The result of one write task: serialized DataFragment messages, and the number of its input rows."""

    fragments: tuple[bytes, ...]
    rows: int


@dataclass(frozen=True)
class WrittenRows(OfTable):
    """Writes the rows of a task to data files.

    Attributes:
        table: the table.
        names: what the table calls the columns that come.
        schema, version: of the files, see `WritePlan`.
        check: the condition that rows have to fulfil, if there is one.
        max_rows_per_file, max_bytes_per_file: see `write_fragments`.
        job: digits in the names of all files of the write.
    """

    table: TableRef
    names: list[str]
    schema: Schema
    version: FileVersion
    check: RowCheck | None
    max_rows_per_file: int
    max_bytes_per_file: int
    job: str

    def write(self, iterator: Iterator[pa.RecordBatch], /) -> LanceCommitMessage:
        """Write the rows.

        Raises:
            SchemaError: a value does not fit its column, or a row the condition of `replaceWhere`.
        """
        received = 0
        documents = {field.name for field in self.schema.fields if field.is_json}
        checks = DeclaredTypeChecks.plan(self.schema)

        def aligned() -> Iterator[pa.RecordBatch]:
            nonlocal received
            aligner: Aligner | None = None
            for batch in iterator:
                received += batch.num_rows
                renamed = with_variant_texts(batch.rename_columns(self.names), documents)
                if aligner is None:
                    aligner = Aligner(renamed.schema, self.schema)
                rows = checks(aligner.align(renamed))
                if self.check is not None:
                    self.check.check(rows)
                yield rows

        with one_line():
            keep_worker_ready()
            fragments = write_fragments(
                aligned(),
                self.table,
                self.schema,
                version=self.version,
                max_rows_per_file=self.max_rows_per_file,
                max_bytes_per_file=self.max_bytes_per_file,
                operation=self.job,
            )
            forget_archives()
        return LanceCommitMessage(tuple(fragments), received)
