"""Clustering rewrites: rows with similar values in some columns are stored close together in the files.

Spark sorts the rows: tasks read the fragments, a range partition sorts them, and tasks write their share, see
`table.maintenance.cluster`. Columns whose values Spark cannot carry unchanged (nanoseconds, dictionaries,
...) stay behind and are fetched by row address when the row is written.

The Z-order of several columns: each value is replaced by its rank among `2**bits` ranges that hold about
equally many rows. The bits of the ranks are interleaved to one number, the sort key of the rows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from spark_lance.errors import OptionError
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import table_pb2
from spark_lance.spark.driver.jobs import gather, scatter
from spark_lance.spark.driver.progress import step
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.types import arrow_schema, spark_field
from spark_lance.spark.table.expressions import functions_of
from spark_lance.table.maintenance.cluster import (
    ClusterPart,
    ClusterWriter,
    lineage_columns,
    spills_lineage,
)
from spark_lance.table.maintenance.compact_plan import CompactionOptions
from spark_lance.table.reading.scan import ScanTask
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import system_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Clustering", "is_carried"]

# Bytes in files that one task writes, and that one task reads; the fixed cost of a fragment in bytes.
_TASK_BYTES = 256 << 20
_SHARE_BYTES = 64 << 20
_FRAGMENT_BYTES = 64 << 10
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 16
_SAMPLED_ROWS = 50_000
_RANK_BITS = 10
# Bits of all ranks together: what a signed number of 64 bits holds.
_KEY_BITS = 63
# A column with a direction, as in ORDER BY.
_DIRECTED = re.compile(r"(\S+)(?:\s+(ASC|DESC))?(?:\s+NULLS\s+(FIRST|LAST))?", re.IGNORECASE)


@dataclass(frozen=True)
class Clustering:
    """Some fragments of one version whose rows are put in another order.

    Attributes:
        spark: the session.
        snapshot: the version.
        fragments: ids of the fragments.
        keys: the columns that decide the order; dots lead into structs. ASC, DESC, NULLS FIRST and NULLS LAST
            may follow a name, as in SQL.
        options: sizes and version of the new files.
    """

    spark: SparkSession
    snapshot: Snapshot
    fragments: frozenset[int]
    keys: tuple[str, ...]
    options: CompactionOptions

    def run(self, *, interleaved: bool) -> list[ClusterPart]:
        """Write the rows in their new order; nothing is committed.

        Args:
            interleaved: sort by the Z-order of the keys instead of by one key after the other.

        Raises:
            SchemaError: a key does not exist, or Spark has no type for it.
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
        """
        schema = self.snapshot.manifest.schema
        carried = [top.name for top in schema.fields if is_carried(top.arrow_type())]
        system = lineage_columns(self.snapshot.manifest.uses_stable_row_ids)
        names = list(dict.fromkeys([*carried, *system, *(self._path(key)[0] for key in self.keys)]))
        frame, order = self._ordered_by(self._frame(names), names, interleaved)
        # With the address no two rows are equal: the same rows give the same files each time.
        order.append(self._f.col(f"c{names.index(system[0])}"))
        frame = frame.repartitionByRange(self._runs(), *order).sortWithinPartitions(*order)
        writer = ClusterWriter(
            table=self.snapshot.table,
            read_version=self.snapshot.manifest.version,
            schema=schema,
            version=self._version,
            rows_per_file=self.options.target_rows_per_fragment,
            bytes_per_file=self.options.max_bytes_per_file,
            carried=tuple(carried),
            stable_row_ids=self.snapshot.manifest.uses_stable_row_ids,
            spills=spills_lineage(self.snapshot.manifest, self._rows),
        )
        travelling = frame.select([f"c{place}" for place in range(len(carried) + len(system))])
        with step(self.spark, f"sort and write {self._rows} rows"):
            return gather(travelling, lambda rows: [writer.write(rows)])

    def _ordered_by(
        self, frame: DataFrame, names: Sequence[str], interleaved: bool
    ) -> tuple[DataFrame, list[Column]]:
        """Return the frame, with one more column if needed, and what to sort it by."""
        if not interleaved:
            return frame, [self._directed(key, names) for key in self.keys]
        values = [self._value(key, names) for key in self.keys]
        bits = min(_RANK_BITS, _KEY_BITS // len(values))
        if not bits:
            raise OptionError(f"a Z-order of more than {_KEY_BITS} columns")
        bounds = self._bounds(2**bits - 1)
        ranks = [f"r{place}" for place in range(len(values))]
        ranked = [
            self._rank(value, edges).alias(rank)
            for value, edges, rank in zip(values, bounds, ranks, strict=True)
        ]
        # Two steps, so that Spark computes each rank once.
        ranked_frame = frame.select("*", *ranked)
        return ranked_frame.withColumn("z", self._interleaved(ranks, bits)), [self._f.col("z")]

    def _bounds(self, count: int) -> list[list[Any]]:
        """Return for every key `count` values that part a sample of its rows into equally large ranges."""
        names = list(dict.fromkeys(self._path(key)[0] for key in self.keys))
        frame = self._frame(names)
        if self._rows > _SAMPLED_ROWS:
            frame = frame.sample(_SAMPLED_ROWS / self._rows, self._rows)
        lists = [self._f.array_sort(self._f.collect_list(self._value(key, names))) for key in self.keys]
        columns = [f"s{place}" for place in range(len(lists))]
        collected = frame.agg(*(each.alias(name) for each, name in zip(lists, columns, strict=True)))
        spaced = [self._spaced(self._f.col(name), count) for name in columns]
        with step(self.spark, "sample the keys"):
            return [list(values or ()) for values in collected.select(*spaced).collect()[0]]

    def _spaced(self, values: Column, count: int) -> Column:
        """Return `count` of some sorted values, equally far apart; null if there are no values."""
        f = self._f
        step = f.size(values) / (count + 1)
        chosen = f.transform(
            f.sequence(f.lit(1), f.lit(count)),
            lambda place: f.element_at(values, f.ceil(place * step).cast("int")),
        )
        column: Column = f.when(f.size(values) > 0, chosen)
        return column

    def _rank(self, value: Column, edges: Sequence[Any]) -> Column:
        """Return how many of the ascending `edges`, 2^n - 1 or none, are not above a value; 0 for null."""
        f = self._f
        array = f.array(*(f.lit(edge) for edge in edges))
        steps = [1 << bit for bit in reversed(range(len(edges).bit_length()))]

        def halve(passed: Column, step: Column) -> Column:
            column: Column = f.when(f.element_at(array, passed + step) <= value, passed + step)
            return column.otherwise(passed)

        if not edges:
            nothing: Column = f.lit(0)
            return nothing
        rank: Column = f.aggregate(f.array(*(f.lit(step) for step in steps)), f.lit(0), halve)
        return rank

    def _interleaved(self, ranks: Sequence[str], bits: int) -> Column:
        """Return the number whose bits are those of the ranks in turn, the highest ones first."""
        f = self._f
        parts: list[Column] = [
            f.shiftleft(f.shiftright(f.col(rank), bit).bitwiseAND(1).cast("bigint"), bit * len(ranks) + place)
            for bit in range(bits)
            for place, rank in enumerate(reversed(ranks))
        ]
        return reduce(lambda left, right: left.bitwiseOR(right), parts)

    @property
    def _f(self) -> Any:
        return functions_of(self.spark)

    @property
    def _chosen(self) -> list[table_pb2.DataFragment]:
        return [fragment for fragment in self.snapshot.manifest.fragments if fragment.id in self.fragments]

    @property
    def _version(self) -> FileVersion:
        version = self.options.data_storage_version
        return self.snapshot.manifest.file_version if version is None else FileVersion.parse(version)

    @property
    def _rows(self) -> int:
        return sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in self._chosen)

    def _runs(self) -> int:
        """Return the number of sorted runs: one for each file that is wanted, and more if these are large."""
        stored = sum(file.file_size_bytes for fragment in self._chosen for file in fragment.files)
        by_rows = math.ceil(self._rows / self.options.target_rows_per_fragment)
        by_bytes = math.ceil(stored / min(self.options.max_bytes_per_file, _TASK_BYTES))
        return max(1, by_rows, by_bytes)

    def _directed(self, key: str, names: Sequence[str]) -> Column:
        """Return a key with its direction; nulls are first, and last for DESC, unless it says otherwise."""
        value, match = self._value(key, names), _DIRECTED.fullmatch(key)
        if match is None or self._is_column(key):
            return value
        descends = (match[2] or "").upper() == "DESC"
        nulls_last = (match[3] or ("LAST" if descends else "FIRST")).upper() == "LAST"
        side = f"{'desc' if descends else 'asc'}_nulls_{'last' if nulls_last else 'first'}"
        column: Column = getattr(value, side)()
        return column

    def _is_column(self, key: str) -> bool:
        return any(top.name == key for top in self.snapshot.manifest.schema.fields)

    def _path(self, key: str) -> list[str]:
        """Return the names that lead to a key: a column whose name has dots is meant first."""
        if self._is_column(key):
            return [key]
        match = _DIRECTED.fullmatch(key)
        top, *inner = (match[1] if match else key).strip("`").split(".")
        self.snapshot.manifest.schema.field(top)
        return [top, *inner]

    def _value(self, key: str, names: Sequence[str]) -> Column:
        top, *inner = self._path(key)
        value: Column = self._f.col(f"c{names.index(top)}")
        return reduce(lambda outer, name: outer.getField(name), inner, value)

    def _frame(self, names: Sequence[str]) -> DataFrame:
        """Return columns of the rows, which are called c0, c1, ... by their places in `names`."""
        scan = self.snapshot.scan(names, fragments=self._chosen)
        system = system_names(field.name for field in self.snapshot.manifest.schema.fields)
        fields = [
            st.StructField(name, st.LongType(), False)
            if name in system
            else spark_field(self.snapshot.manifest.schema.field(name).read_field())
            for name in names
        ]
        numbered = [st.StructField(f"c{place}", f.dataType, f.nullable) for place, f in enumerate(fields)]
        schema = st.StructType(numbered)
        target = arrow_schema(schema)

        def read(share: list[ScanTask]) -> Iterator[pa.RecordBatch]:
            for task in share:
                convert = BatchConverter.plan(task.arrow_schema, target)
                for batch in task.batches(_BATCH_BYTES, _BATCH_ROWS):
                    yield convert(batch)

        return scatter(self.spark, _shares(scan.tasks()), read, schema)


def _shares(tasks: Sequence[ScanTask]) -> list[list[ScanTask]]:
    """Share fragments, and runs of rows of large ones, out to Spark tasks of not too many bytes."""
    shares: list[list[ScanTask]] = [[]]
    total = 0
    for task in tasks:
        rows = task.message.physical_rows
        stored = sum(file.file_size_bytes for file in task.message.files) + _FRAGMENT_BYTES
        pieces = min(math.ceil(stored / _SHARE_BYTES), max(1, rows))
        for start, stop in pairwise(rows * place // pieces for place in range(pieces + 1)):
            if total and total + stored // pieces > _SHARE_BYTES:
                shares.append([])
                total = 0
            shares[-1].append(replace(task, span=(start, stop)))
            total += stored // pieces
    return shares


def is_carried(arrow: pa.DataType) -> bool:
    """Whether Spark carries all values of a type and gives each one back as it was."""
    kind = pa.types
    if kind.is_timestamp(arrow):
        return bool(arrow.unit == "us")
    if kind.is_list(arrow) or kind.is_large_list(arrow) or kind.is_fixed_size_list(arrow):
        return is_carried(arrow.value_type)
    if kind.is_struct(arrow):
        return arrow.num_fields > 0 and all(is_carried(arrow.field(i).type) for i in range(arrow.num_fields))
    if kind.is_decimal(arrow):
        return bool(0 <= arrow.scale <= arrow.precision <= 38)
    return arrow in _CARRIED or bool(kind.is_fixed_size_binary(arrow))


_CARRIED = frozenset(
    {
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
        *(pa.date32(), pa.duration("us")),
    }
)
