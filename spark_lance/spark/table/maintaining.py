"""Table maintenance in Spark jobs: compaction, clustering, vacuum and repair.

Clustering rewrites files so that rows with similar values in some columns are close to each other.

Spark sorts the rows: tasks read the fragments, a range partitioning sorts the rows, and tasks write their
partitions; see `table.maintenance.cluster`. Columns whose values Spark would change (nanoseconds,
dictionaries, ...) are not shuffled. The writing task reads them by row address.

Order by several columns: each value is replaced by its rank among `2**bits` ranges with about the same
number of rows. The sort key of the row is the position of its ranks on a curve. `executeZOrderBy` interleaves
their bits (Z-order). CLUSTER BY with up to four columns follows a Hilbert curve.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.spelling import SpellingHintMixin
from spark_lance.errors import (
    LanceError,
    OptionError,
    RetryableConflictError,
    SchemaError,
)
from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.columns import leaf_field
from spark_lance.index.remap import SegmentRemap
from spark_lance.index.scalar.kinds import BOUNDS
from spark_lance.proto import table_pb2
from spark_lance.spark.driver.arguments import check_number
from spark_lance.spark.driver.jobs import collect_answers, local_bytes, map_tasks, run_to_frame
from spark_lance.spark.driver.progress import operation, step
from spark_lance.spark.options.table_properties import clustering_columns
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.sort_keys import sort_key
from spark_lance.spark.schema.types import arrow_schema, spark_field
from spark_lance.spark.table.base import TableBase
from spark_lance.spark.table.expressions import (
    Expression,
    analysis_errors,
    as_column,
    columns_option,
    expression_text,
    needed_columns,
    spark_functions,
)
from spark_lance.spark.table.indexing import TableIndexes
from spark_lance.table.commits.commit import retry_operation
from spark_lance.table.commits.commit_rows import delete_on_failure
from spark_lance.table.format.index_kinds import index_label
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import NO_PARTITIONS, PartitionSpec
from spark_lance.table.maintenance.cluster import (
    ClusterPart,
    ClusterWriter,
    check_clusterable,
    check_parts,
    commit_parts,
    lineage_columns,
    spills_lineage,
    unclustered,
)
from spark_lance.table.maintenance.compact import compact_table, execute_all
from spark_lance.table.maintenance.compact_plan import CompactionOptions, read_options
from spark_lance.table.maintenance.compact_task import CompactionMetrics, CompactionTask, RewriteResult
from spark_lance.table.maintenance.hilbert import MAX_DIMENSIONS, STATE_BITS, hilbert_steps
from spark_lance.table.maintenance.retention import (
    MAX_REF_AGE,
    check_deletion,
    expiry_setting,
    guarded_age,
    min_retention,
    table_retention,
)
from spark_lance.table.maintenance.verify import repair
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, system_names
from spark_lance.table.versions.ages import age_of_hours
from spark_lance.table.versions.cleanup import CleanupFile, CleanupStats
from spark_lance.table.versions.retention import branch_retention, drop_expired_refs
from spark_lance.table.writing.write import delete_fragment_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# File bytes that one task writes, file bytes that one task reads, and the fixed cost of a fragment in bytes.
_TASK_BYTES = 256 << 20
_SHARE_BYTES = 64 << 20
_FRAGMENT_BYTES = 64 << 10
_BATCH_BYTES = 8 << 20
_BATCH_ROWS = 1 << 16
_SAMPLED_ROWS = 50_000
_RANK_BITS = 10
# Bits of all ranks together, so that the key fits into a signed 64-bit integer.
_KEY_BITS = 63


@dataclass(frozen=True)
class Clustering:
    """A job that sorts the rows of some fragments of one version.

    Attributes:
        spark: the session.
        snapshot: the version.
        fragments: ids of the fragments.
        keys: columns or dotted paths of struct fields to sort by. ASC, DESC, NULLS FIRST and NULLS LAST may
            follow a name, as in SQL.
        options: sizes and format version of the new files.
        marked: whether the new files count as clustered for later clusterings.
    """

    spark: SparkSession
    snapshot: Snapshot
    fragments: frozenset[int]
    keys: tuple[str, ...]
    options: CompactionOptions
    marked: bool = False

    def run(self, *, interleaved: bool) -> list[ClusterPart]:
        """Write the rows in the new order without a commit.

        Args:
            interleaved: sort along a curve through all keys instead of lexicographically.

        Raises:
            SchemaError: a key does not exist, or Spark has no type for it.
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
        """
        schema = self.snapshot.manifest.schema
        carried_columns = [top.name for top in schema.fields if is_carried(top.arrow_type())]
        system = lineage_columns(self.snapshot.manifest.uses_stable_row_ids)
        spec = PartitionSpec.of_config(self.snapshot.manifest.config).present(schema)
        names = list(
            dict.fromkeys(
                [*carried_columns, *system, *(self._path(key)[0] for key in self.keys), *spec.sources()]
            )
        )
        frame, order = self._add_order(self._frame(names, spec), names, interleaved)
        if spec:
            order.insert(0, self._f.col("p"))
        # The address makes the order unique, so that a retry writes the same files.
        order.append(self._f.col(f"c{names.index(system[0])}"))
        frame = frame.repartitionByRange(self._count_partitions(), *order).sortWithinPartitions(*order)
        writer = ClusterWriter(
            table=self.snapshot.table,
            read_version=self.snapshot.manifest.version,
            schema=schema,
            version=self._version,
            # Tasks differ in size: a task that is a little too large does not get a second, small file.
            rows_per_file=self.options.target_rows_per_fragment * 3 // 2,
            bytes_per_file=self.options.max_bytes_per_file,
            carried=tuple(carried_columns),
            stable_row_ids=self.snapshot.manifest.uses_stable_row_ids,
            spills=spills_lineage(self.snapshot.manifest, self._rows),
            partitions=spec,
            marked=self.marked,
        )
        shuffled_rows = frame.select([f"c{place}" for place in range(len(carried_columns) + len(system))])
        with step(self.spark, f"sort and write {self._rows} rows"):
            return collect_answers(shuffled_rows, lambda rows: [writer.write(rows)])

    def _add_order(
        self, frame: DataFrame, names: Sequence[str], interleaved: bool
    ) -> tuple[DataFrame, list[Column]]:
        """Return the frame, with the position on a curve if needed, and its sort columns."""
        if not interleaved:
            return frame, [self._sort_column(key, names) for key in self.keys]
        hilbert = self.marked and len(self.keys) <= MAX_DIMENSIONS
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
        position = self._hilbert(ranks, bits) if hilbert else self._interleave(ranks, bits)
        return ranked_frame.withColumn("z", position), [self._f.col("z")]

    def _bounds(self, count: int) -> list[list[Any]]:
        """Return for each key `count` values that split a sample of the rows into ranges of equal size."""
        names = list(dict.fromkeys(self._path(key)[0] for key in self.keys))
        frame = self._frame(names)
        if self._rows > _SAMPLED_ROWS:
            frame = frame.sample(_SAMPLED_ROWS / self._rows, self._rows)
        lists = [self._f.array_sort(self._f.collect_list(self._value(key, names))) for key in self.keys]
        columns = [f"s{place}" for place in range(len(lists))]
        collected = frame.agg(*(each.alias(name) for each, name in zip(lists, columns, strict=True)))
        spaced = [self._pick_spaced(self._f.col(name), count) for name in columns]
        with step(self.spark, "sample the keys"):
            return [list(values or ()) for values in collected.select(*spaced).collect()[0]]

    def _pick_spaced(self, values: Column, count: int) -> Column:
        """Return `count` evenly spaced elements of a sorted array; null if it is empty."""
        f = self._f
        step = f.size(values) / (count + 1)
        bounds = f.transform(
            f.sequence(f.lit(1), f.lit(count)),
            lambda place: f.element_at(values, f.ceil(place * step).cast("int")),
        )
        column: Column = f.when(f.size(values) > 0, bounds)
        return column

    def _rank(self, value: Column, edges: Sequence[Any]) -> Column:
        """Return how many of the sorted `edges` (2^n - 1 or none) are at most a value; 0 for null."""
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

    def _interleave(self, ranks: Sequence[str], bits: int) -> Column:
        """Return the ranks with interleaved bits, highest bits first."""
        f = self._f
        parts: list[Column] = [
            f.shiftleft(f.shiftright(f.col(rank), bit).bitwiseAND(1).cast("bigint"), bit * len(ranks) + place)
            for bit in range(bits)
            for place, rank in enumerate(reversed(ranks))
        ]
        return reduce(lambda left, right: left.bitwiseOR(right), parts)

    def _hilbert(self, ranks: Sequence[str], bits: int) -> Column:
        """Return the position of the ranks on a Hilbert curve; see `hilbert_steps`."""
        f, count = self._f, len(ranks)
        steps = f.array(*(f.lit(step) for step in hilbert_steps(count)))
        cells = [
            reduce(
                lambda left, right: left.bitwiseOR(right),
                [
                    f.shiftleft(f.shiftright(f.col(rank), bit).bitwiseAND(1), place)
                    for place, rank in enumerate(ranks)
                ],
            )
            for bit in reversed(range(bits))
        ]

        def add_cell(position: Column, cell: Column) -> Column:
            # `position` has the digits so far and, in its lowest bits, the state.
            state = position.bitwiseAND((1 << STATE_BITS) - 1).cast("int")
            step = f.element_at(steps, f.shiftleft(state, count) + cell + 1).cast("bigint")
            digits = f.shiftleft(f.shiftright(position, STATE_BITS), count + STATE_BITS)
            column: Column = digits.bitwiseOR(step)
            return column

        with_state = f.aggregate(f.array(*cells), f.lit(0).cast("bigint"), add_cell)
        column: Column = f.shiftright(with_state, STATE_BITS)
        return column

    @property
    def _f(self) -> Any:
        return spark_functions(self.spark)

    @property
    def _fragments_to_cluster(self) -> list[table_pb2.DataFragment]:
        return [fragment for fragment in self.snapshot.manifest.fragments if fragment.id in self.fragments]

    @property
    def _version(self) -> FileVersion:
        version = self.options.data_storage_version
        return self.snapshot.manifest.file_version if version is None else FileVersion.parse(version)

    @property
    def _rows(self) -> int:
        return sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in self._fragments_to_cluster)

    def _count_partitions(self) -> int:
        """Return the number of sorted partitions: one per target file, or more if the files are large."""
        byte_count = sum(
            file.file_size_bytes for fragment in self._fragments_to_cluster for file in fragment.files
        )
        by_rows = math.ceil(self._rows / self.options.target_rows_per_fragment)
        by_bytes = math.ceil(byte_count / min(self.options.max_bytes_per_file, _TASK_BYTES))
        return max(1, by_rows, by_bytes)

    def _sort_column(self, key: str, names: Sequence[str]) -> Column:
        """Return a sort column with its direction. Default: nulls first for ASC, nulls last for DESC."""
        _, descends, nulls_last = sort_key(key, self.snapshot.manifest.schema)
        side = f"{'desc' if descends else 'asc'}_nulls_{'last' if nulls_last else 'first'}"
        column: Column = getattr(self._value(key, names), side)()
        return column

    def _path(self, key: str) -> list[str]:
        """Return the path of a key: a column name and the names of nested fields."""
        return sort_key(key, self.snapshot.manifest.schema)[0]

    def _value(self, key: str, names: Sequence[str]) -> Column:
        top, *inner = self._path(key)
        value: Column = self._f.col(f"c{names.index(top)}")
        return reduce(lambda outer, name: outer.getField(name), inner, value)

    def _frame(self, names: Sequence[str], spec: PartitionSpec = NO_PARTITIONS) -> DataFrame:
        """Return the columns `names` of the rows as c0, c1, ....

        With a partition spec, the frame has the additional column `p`: equal bytes for equal partitions.
        """
        scan = self.snapshot.scan(names, fragments=self._fragments_to_cluster)
        system = system_names(field.name for field in self.snapshot.manifest.schema.fields)
        fields = [
            st.StructField(name, st.LongType(), False)
            if name in system
            else spark_field(self.snapshot.manifest.schema.field(name).read_field())
            for name in names
        ]
        numbered = [st.StructField(f"c{place}", f.dataType, f.nullable) for place, f in enumerate(fields)]
        target = arrow_schema(st.StructType(numbered))
        partition = [st.StructField("p", st.BinaryType(), False)] if spec else []
        schema = st.StructType([*numbered, *partition])

        def read(share: list[ScanTask]) -> Iterator[pa.RecordBatch]:
            for task in share:
                convert = BatchConverter.plan(task.arrow_schema, target)
                for batch in task.batches(_BATCH_BYTES, _BATCH_ROWS):
                    converted = convert(batch)
                    if spec:
                        keys = spec.keys(pa.Table.from_batches([batch])).combine_chunks()
                        field = pa.field("p", pa.binary(), False)
                        converted = converted.append_column(field, keys)
                    yield converted

        return run_to_frame(self.spark, _group_tasks(scan.tasks()), read, schema)


def _group_tasks(tasks: Sequence[ScanTask]) -> list[list[ScanTask]]:
    """Group scan tasks into Spark tasks of at most about `_SHARE_BYTES`. Large fragments are split."""
    shares: list[list[ScanTask]] = [[]]
    total = 0
    for task in tasks:
        rows = task.message.physical_rows
        byte_count = sum(file.file_size_bytes for file in task.message.files) + _FRAGMENT_BYTES
        pieces = min(math.ceil(byte_count / _SHARE_BYTES), max(1, rows))
        for start, stop in pairwise(rows * place // pieces for place in range(pieces + 1)):
            if total and total + byte_count // pieces > _SHARE_BYTES:
                shares.append([])
                total = 0
            shares[-1].append(replace(task, span=(start, stop)))
            total += byte_count // pieces
    return shares


def is_carried(arrow: pa.DataType) -> bool:
    """Return whether all values of an Arrow type survive a round trip through Spark."""
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


logger = logging.getLogger(__name__)

# Delta Lake has the columns `path` and `metrics`.
_FILES = "struct<min: bigint, max: bigint, avg: double, totalFiles: bigint, totalSize: bigint>"
_METRICS = (
    "fragments_removed bigint, fragments_added bigint, files_removed bigint, files_added bigint, "
    "path string, metrics struct<numFilesAdded: bigint, numFilesRemoved: bigint, "
    f"filesAdded: {_FILES}, filesRemoved: {_FILES}>"
)
_CLEANUP = (
    "bytes_removed bigint, old_versions bigint, data_files_removed bigint, transaction_files_removed bigint, "
    "index_files_removed bigint, deletion_files_removed bigint, failed_deletes bigint"
)
_FILE_COLUMNS = "path string, kind string, size_bytes bigint, unverified boolean"


@dataclass(frozen=True)
class VacuumRequest:
    """The arguments of `LanceTable.vacuum`."""

    retention_hours: float | None = None
    dry_run: bool = False
    retain_versions: int | None = None
    delete_unverified: bool = False
    allow_short_retention: bool = False


@dataclass(frozen=True)
class VacuumWords:
    """The names of vacuum's arguments in an API, for error messages.

    Attributes:
        hours, retain: names of the arguments `retentionHours` and `retainVersions`.
        allow_short: code that sets `allowShortRetention`.
    """

    hours: str
    retain: str
    allow_short: str


PYTHON_WORDS = VacuumWords("retentionHours", "retainVersions", "allowShortRetention=True")


def _configured_retention(dataset: LanceDataset) -> tuple[float | None, int | None]:
    """Return the configured retention of the branch or the table: hours and number of versions."""
    hour = timedelta(hours=1)
    if dataset.branch is not None:
        least = min_retention(dataset.manifest) / hour
        age, count = branch_retention(dataset.main_line, dataset.branch)
        if age is not None or count is not None:
            return None if age is None else max(age / hour, least), count
    age, count = table_retention(dataset.manifest)
    return None if age is None else age / hour, count


def vacuum(table: TableBase, request: VacuumRequest, words: VacuumWords) -> DataFrame:
    """Delete old versions; see `LanceTable.vacuum`. Errors use the argument names in `words`."""
    hours, retain = request.retention_hours, request.retain_versions
    check_number(words.hours, hours, "168 for 7 days")
    check_number(words.retain, retain, "10", whole=True)
    dataset = table.dataset()
    if not request.dry_run:
        check_deletion(dataset.manifest)
    max_ref_age = expiry_setting(dataset.manifest, MAX_REF_AGE)
    source = f"{words.hours}={hours:g}" if hours is not None else ""
    if hours is None and retain is None:
        hours, retain = _configured_retention(dataset)
        source = f"the table's retention of {hours:g} hours" if hours is not None else ""
    age = guarded_age(
        dataset.manifest,
        None if hours is None else age_of_hours(hours, words.hours),
        retain is not None,
        allow_short=request.allow_short_retention or (request.dry_run and hours is not None),
        source=source,
        remedy=words.allow_short,
    )
    if not request.dry_run:
        # Only now, because a refused call must change nothing.
        drop_expired_refs(dataset.main_line, max_ref_age)
    with operation(table.spark, "clean-up", table.path):
        stats = dataset.cleanup_old_versions(
            older_than=age,
            retain_versions=retain,
            delete_unverified=request.delete_unverified,
            error_if_tagged_old_versions=False,
            dry_run=request.dry_run,
        )
    if request.dry_run:
        return table.spark.createDataFrame([_file_row(file) for file in stats.files], _FILE_COLUMNS)
    return _cleanup_frame(table, stats)


def _cleanup_frame(table: TableBase, stats: CleanupStats) -> DataFrame:
    names = [column.split()[0] for column in _CLEANUP.split(", ")]
    row = (*(getattr(stats, name) for name in names), table.path)
    return table.spark.createDataFrame([row], f"{_CLEANUP}, path string")


def repair_frame(table: TableBase) -> DataFrame:
    """Move torn manifests aside; see `LanceTable.repair`."""
    dataset = table.dataset()
    result = repair(dataset.table)
    row = (result.manifest.version, result.restored, list(result.moved_paths))
    return table.spark.createDataFrame([row], "version bigint, restored bigint, moved array<string>")


def _file_row(file: CleanupFile) -> tuple[str, str, int, bool]:
    return file.path, file.kind, file.size_bytes, file.unverified


@dataclass(frozen=True, repr=False)
class Optimizing(SpellingHintMixin):
    """Compaction and clustering of data files. Get it from `LanceTable.optimize`.

    The execute methods return one row: `fragments_removed`, `fragments_added`, `files_removed`,
    `files_added`, `path`, and `metrics`, which has numbers and sizes of data files by Delta Lake's names.

    Other writers can continue: appends do not conflict. If another writer changes rows of a fragment that is
    being rewritten, the rewrite of that fragment is repeated.

    Attributes:
        table: the table.
        options: options of `LanceDataset.compact_files`.
        conditions: rewrite only fragments with a row for which all conditions are true.
    """

    table: TableBase
    options: Mapping[str, Any] = field(default_factory=dict)
    conditions: tuple[Expression, ...] = ()

    def __repr__(self) -> str:
        texts = [f"{name}={value!r}" for name, value in self.options.items()]
        texts += [f"where {expression_text(condition)}" for condition in self.conditions]
        calls = "executeCompaction(), executeZOrderBy() or executeSortBy()"
        return f"Optimizing({', '.join([repr(self.table.path), *texts])}; not executed: call {calls})"

    def where(self, condition: Expression) -> Optimizing:
        """Return the operation restricted to fragments with at least one row that matches a condition.

        Spark searches these fragments once, before the rewrite. The other rows of these fragments are
        rewritten, too.

        Args:
            condition: SQL or a Column.
        """
        return replace(self, conditions=(*self.conditions, condition))

    def executeCompaction(self) -> DataFrame:
        """Merge small fragments and remove deleted rows; see `LanceDataset.compact_files`.

        Each group of fragments is one Spark task, which needs memory only for a few pages. If the fragments
        have at most `spark.lance.localBytes` stored bytes, the driver rewrites them itself. One commit adds
        all new files. The driver remaps indexes that refer to rows by address. `maxSourceBytes` limits one
        call; the next call continues where the last one ended.

        A table with CLUSTER BY columns is clustered instead: rows of fragments that no clustering has
        written are put in order, as `executeSortBy` and `executeZOrderBy` do for all fragments. Each of the
        columns without an index gets a ZONEMAP, so filters skip files and parts of files. Tables with blobs,
        `maxSource...` options and `deferIndexRemap` are compacted without an order.

        Raises:
            OptionError: an option does not exist or has a bad value.
            RetryableConflictError: every attempt conflicted with other writers.
            CommitError: the commit failed; see its other subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot rewrite.
        """
        dataset = self.table.dataset()
        options = read_options(dataset.manifest.config, self.options)
        columns = clustering_columns(dataset.manifest.config)
        if columns and _can_cluster(dataset.manifest, options):
            return self._cluster(columns, interleaved=len(columns) > 1, incremental=True)

        def execute(tasks: Sequence[CompactionTask]) -> list[RewriteResult]:
            if sum(task.stored_bytes for task in tasks) <= local_bytes(self.table.spark):
                return execute_all(tasks)
            with step(self.table.spark, f"rewrite {len(tasks)} groups of fragments"):
                return map_tasks(self.table.spark, tasks, CompactionTask.execute)

        with operation(self.table.spark, "compaction", self.table.path):
            only = self._find_fragments(dataset) if self.conditions else None
            metrics = compact_table(
                dataset.snapshot,
                options,
                only=only,
                execute=execute,
                remap=SegmentRemap(),
            )
        return self._metrics(metrics)

    def executeSortBy(self, *columns: str) -> DataFrame:
        """Rewrite the rows sorted by columns, so that filters on these columns read fewer files and pages.

        Each new file gets about `targetRowsPerFragment` rows. The sorted rows follow the fragments that are
        not rewritten. With stable row ids, rows keep their ids and indexes stay valid. Without stable row
        ids, indexes no longer cover the rewritten rows.

        If many rows move, their ids and versions are stored in the new data files. Readers that do not
        support this format feature refuse such a table. The table config `lance.row_lineage.spill` = false
        keeps ids and versions in the manifest instead, which costs up to 100 bytes per row.

        Args:
            columns: column names or dotted paths of struct fields. A direction may follow, as in
                `id DESC NULLS LAST`. Default: ascending, nulls first.

        Raises:
            SchemaError: a column does not exist, or Spark has no type for it.
            RetryableConflictError: other writers changed the rows during every attempt.
            CommitError: the commit failed; see its other subclasses.
            UnsupportedFormatError: the table has blobs, or uses a feature that this package cannot write.
        """
        return self._cluster(columns, interleaved=False)

    def executeZOrderBy(self, *columns: str) -> DataFrame:
        """Rewrite the rows so that rows with similar values in all columns are close to each other.

        Arguments and errors as for `executeSortBy`. The value ranges are computed from a sample, so skewed
        values are no problem.
        """
        return self._cluster(columns, interleaved=True)

    def _cluster(self, columns: Sequence[str], *, interleaved: bool, incremental: bool = False) -> DataFrame:
        if not columns or not all(isinstance(column, str) for column in columns):
            raise SchemaError("give the names of one or more columns to sort by")
        dataset = self.table.dataset()
        options = read_options(dataset.manifest.config, self.options)
        if options.defer_index_remap:
            raise OptionError("deferIndexRemap is for compaction: it cannot tell where sorted rows went")

        def attempt(at: Snapshot) -> CompactionMetrics:
            version = dataset.at(at.manifest)
            fragment_ids = {fragment.id for fragment in at.manifest.fragments} - set(
                options.excluded_fragment_ids
            )
            if incremental:
                fragment_ids = unclustered(at.manifest, options, _TASK_BYTES)
            return self._cluster_once(version, tuple(columns), options, fragment_ids, interleaved)

        with operation(self.table.spark, "clustering", self.table.path):
            metrics = retry_operation(dataset.snapshot, attempt)
            if metrics.fragments_added and list(columns) == clustering_columns(dataset.manifest.config):
                self._add_statistics(columns)
            return self._metrics(metrics)

    def _add_statistics(self, columns: Sequence[str]) -> None:
        """Bring the ZONEMAPs of the clustering columns up to date. Columns with another index get none."""
        indexes = TableIndexes(self.table)
        for column in columns:
            manifest = self.table.dataset().manifest
            try:
                path = ".".join(sort_key(column, manifest.schema)[0])
                field = leaf_field(manifest.schema, path)
                entries = [entry for entry in manifest.indices if list(entry.fields) == [field.id]]
                if not entries and BOUNDS.supports_type(field.arrow_type()):
                    indexes.createScalar(path, BOUNDS.name)
                for name in dict.fromkeys(each.name for each in entries if index_label(each) == BOUNDS.label):
                    indexes.optimize(name)
            except LanceError as error:
                logger.warning(
                    "column %s of %s has no current %s, so filters read more files: %s",
                    column,
                    self.table.path,
                    BOUNDS.name,
                    error,
                )

    def _cluster_once(
        self,
        dataset: LanceDataset,
        columns: tuple[str, ...],
        options: CompactionOptions,
        fragment_ids: set[int],
        interleaved: bool,
    ) -> CompactionMetrics:
        """Rewrite the rows of fragments of one version and commit. A failure deletes the new files."""
        snapshot, manifest = dataset.snapshot, dataset.manifest
        check_clusterable(manifest)
        old = fragment_ids
        if old and self.conditions:
            old = old & self._find_fragments(dataset)
        if not old:
            return CompactionMetrics()
        marked = list(columns) == clustering_columns(manifest.config)
        work = Clustering(self.table.spark, snapshot, frozenset(old), columns, options, marked)
        parts = work.run(interleaved=interleaved)
        new = [data for part in parts for data in part.new]
        try:
            with delete_on_failure(lambda: delete_fragment_files(snapshot.table, new)):
                check_parts(snapshot, old, parts)
                commit_parts(snapshot, old, parts)
        except RetryableConflictError as error:
            logger.info("sorting %s: %s", snapshot.root, error)
            raise
        return _move_metrics(manifest, old, parts)

    def _find_fragments(self, dataset: LanceDataset) -> set[int]:
        """Return the ids of the fragments with a row that matches the conditions."""
        columns = [*needed_columns(dataset.schema.names, self.conditions), ROW_ADDRESS]
        rows = self.table.read(version=dataset.version, columns=columns_option(columns))
        with analysis_errors("the condition of optimize().where", dataset.schema.names):
            for condition in self.conditions:
                rows = rows.where(as_column(spark_functions(self.table.spark), condition))
        numbers = rows.selectExpr(f"shiftright(`{ROW_ADDRESS}`, 32) AS fragment").distinct()
        with step(self.table.spark, "find fragments with matching rows"):
            return {row.fragment for row in numbers.collect()}

    def _metrics(self, metrics: CompactionMetrics) -> DataFrame:
        removed, added = metrics.removed_sizes, metrics.added_sizes
        row = (
            metrics.fragments_removed,
            metrics.fragments_added,
            metrics.files_removed,
            metrics.files_added,
            self.table.path,
            (len(added), len(removed), _summarize_sizes(added), _summarize_sizes(removed)),
        )
        return self.table.spark.createDataFrame([row], _METRICS)


def _summarize_sizes(sizes: Sequence[int]) -> tuple[int | None, int | None, float, int, int]:
    """Return the least, largest and mean size of files, their number, and their total size."""
    total = sum(sizes)
    return min(sizes, default=None), max(sizes, default=None), total / max(1, len(sizes)), len(sizes), total


def _can_cluster(manifest: Manifest, options: CompactionOptions) -> bool:
    """Return whether an incremental clustering can do what a compaction with these options is for."""
    bounded = options.max_source_fragments or options.max_source_rows or options.max_source_bytes
    blobs = any(node.is_blob for top in manifest.schema.fields for node in top.walk())
    return not (bounded or options.defer_index_remap or blobs)


def _move_metrics(manifest: Manifest, old: set[int], parts: Sequence[ClusterPart]) -> CompactionMetrics:
    replaced = [fragment for fragment in manifest.fragments if fragment.id in old]
    new = [table_pb2.DataFragment.FromString(data) for part in parts for data in part.new]
    return CompactionMetrics.from_fragments(replaced, new)
