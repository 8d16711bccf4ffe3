"""A data source that returns prepared Arrow batches: the upper bound for Python data sources in Spark.

`export` runs the partitions of a Lance read once, and stores the batches of each partition as an Arrow IPC
file. The source "transport" maps these files into memory and returns the same batches to Spark. So its time
is only the transfer from Python to the JVM.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

__all__ = ["TransportSource", "export"]

_SCHEMA = "schema.json"


@dataclass(frozen=True)
class _File(InputPartition):
    path: str


class TransportSource(DataSource):
    """The batches that `export` wrote to the folder given as `path`."""

    @classmethod
    def name(cls) -> str:
        """Return "transport"."""
        return "transport"

    def schema(self) -> StructType:
        """Return the Spark schema of the batches."""
        return StructType.fromJson(json.loads((Path(self.options["path"]) / _SCHEMA).read_text()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the batches."""
        return _Reader(self.options["path"])


class _Reader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [_File(str(file)) for file in sorted(Path(self._folder).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _File)
        with pa.memory_map(partition.path) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)


def export(table: str, folder: str, cores: int, **options: str) -> None:
    """Write the batches of a read of a Lance table, and their schema, to a folder.

    Args:
        table: where the table is.
        folder: is created.
        cores: the parallelism of the session that will read.
        options: of the read.
    """
    from spark_lance.spark.options.options import read_options
    from spark_lance.spark.scan.rows import LanceReader, describe

    parsed = read_options({"path": table, **options})
    ref, schema = describe(parsed, None)
    reader = LanceReader(parsed, schema, ref, cores=cores)
    Path(folder).mkdir(parents=True)
    (Path(folder) / _SCHEMA).write_text(schema.json())
    for number, partition in enumerate(reader.partitions()):
        batches = iter(reader.read(partition))
        first = next(batches)
        with pa.ipc.new_file(f"{folder}/{number:04}.arrow", first.schema) as out:
            for batch in (first, *batches):
                out.write_batch(batch)
