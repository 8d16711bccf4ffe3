"""The data source, but once it fails or dies in the middle of the commit of a micro-batch.

option fault.place     before, after    the version is made
option fault.batch     the number of the micro-batch
option fault.marker    a file that tells that it has happened
option fault.kill      process ids, separated by commas, that are killed; without it an error is raised
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_lance.spark.source import LanceDataSource


class FaultySource(LanceDataSource):
    """Registered by tests under the name `lance_faulty`."""

    def __init__(self, options: dict[str, str]) -> None:
        self._faults = {key: value for key, value in options.items() if key.startswith("fault.")}
        for key in self._faults:
            del options[key]
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "lance_faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return FaultyWriter(super().streamWriter(schema, overwrite), self._faults)


class FaultyWriter(DataSourceStreamArrowWriter):
    """Hands everything on to a writer, but for the fault."""

    def __init__(self, writer: Any, options: Mapping[str, str]) -> None:
        self._writer = writer
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message: WriterCommitMessage = self._writer.write(iterator)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        due = str(batchId) == self._options.get("fault.batch")
        if due and self._options["fault.place"] == "before":
            self._fail()
        self._writer.commit(messages, batchId)
        if due and self._options["fault.place"] == "after":
            self._fail()

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.abort(messages, batchId)

    def _fail(self) -> None:
        marker = Path(self._options["fault.marker"])
        if marker.exists():
            return
        marker.touch()
        for process in filter(None, self._options.get("fault.kill", "").split(",")):
            os.kill(int(process), signal.SIGKILL)
        raise OSError("a fault, as asked for")
