"""`LanceScanner`, a read that can run several times, and the plan of a read as text.

The text is a tree of steps with the last step first.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from spark_lance.datasets.scan_request import Projection, ScanRequest, first_rows, joined, sorted_rows
from spark_lance.datasets.spelling import SpellingHintMixin
from spark_lance.errors import OptionError
from spark_lance.expressions.predicate import Condition, condition_text
from spark_lance.file.base.extensions import restore_schema_types, restore_table_types
from spark_lance.io.counters import read_counts
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import row_addresses
from spark_lance.table.reading.fragment_rows import rows_without_columns
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.pruning import find_used_indexes
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.scan_task import rebatch
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS, SYSTEM_COLUMNS

if TYPE_CHECKING:
    from spark_lance.datasets.show import PlanPicture

_SHOWN_FRAGMENTS = 20


def explain_scan(
    request: ScanRequest,
    projection: Projection,
    scan: Scan,
    condition: Condition | None,
    verbose: bool,
    searched: Sequence[str] = (),
) -> str:
    """Return the plan of a read.

    Args:
        request, projection: the request and its columns.
        scan: the scan of the request.
        condition: the filter, compiled for the table.
        verbose: open the fragments, and list the rows that remain after pruning by page statistics.
        searched: the search steps of a vector search: index search, exact search, or both.
    """
    steps = []
    if projection.outputs is not None:
        steps.append(f"ProjectionExec: expr=[{', '.join(output.text for output in projection.outputs)}]")
    if request.blob_handling == "all_binary":
        steps.append("ReadBlobs: as bytes")
    if request.limit is not None or request.offset:
        steps.append(f"GlobalLimitExec: skip={request.offset or 0}, fetch={request.limit}")
    if request.order_by:
        steps.append(f"SortExec: expr=[{', '.join(str(ordering) for ordering in request.order_by)}]")
    if request.is_search:
        steps += _search_steps(request, condition, searched)
        condition = condition if request.prefilter else None
    steps += _scan_steps(scan, condition, verbose)
    return "\n".join("  " * depth + line for depth, line in enumerate(steps)) + "\n"


def analyze_scan(plan: str, parts: Iterable[pa.Table], scanned: int | None) -> str:
    """Run a read and return its plan with output and I/O counts.

    Args:
        plan: the result of `explain_scan`.
        parts: the rows of the read; iterating them runs it.
        scanned: number of rows that the scan decodes, or None if it is unknown. It is known only if the read
            returns all rows of the scan.
    """
    start, cpu = time.perf_counter(), time.process_time()
    counts_before = read_counts()
    rows = size = batches = 0
    for part in parts:
        rows += part.num_rows
        size += part.nbytes
        batches += 1
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    measured = f"output_rows={rows}, output_batches={batches}, output_bytes={size}"
    read = read_counts() - counts_before
    head = f"AnalyzeExec: elapsed={seconds * 1000:.3f}ms, cpu={used * 1000:.3f}ms, metrics=[{measured}]\n"
    text = f"bytes_read={read.bytes}, iops={read.reads}, requests={read.requests}"
    text += f", cache_hits={read.cache_hits}"
    if scanned is not None:
        text = f"output_rows={rows}, rows_scanned={scanned}, {text}"
    lines = (
        f"{line}, metrics=[{text}]" if line.lstrip().startswith("LanceRead:") else line
        for line in plan.splitlines()
    )
    return head + "".join(f"  {line}\n" for line in lines)


def scanned_rows(request: ScanRequest, scan: Scan, condition: Condition | None) -> int | None:
    """Return how many rows a scan decodes; None for a search, or with a limit or offset.

    Opens the fragments that remain after pruning, to read their page statistics.
    """
    if request.is_search or request.limit is not None or request.offset:
        return None
    if condition is None:
        return int(scan.count())
    rows = 0
    for task in scan.plan_tasks(condition):
        if task.selection is not None:
            rows += len(BitMap.deserialize(task.selection))
        else:
            rows += sum(stop - start for start, stop in task.runs(condition)[0])
    return rows


def _search_steps(request: ScanRequest, condition: Condition | None, searched: Sequence[str]) -> list[str]:
    steps = []
    if condition is not None and not request.prefilter:
        steps.append(f"FilterExec: {condition_text(condition)}")
    if request.nearest is not None:
        options = {
            name: value for name, value in request.nearest.items() if name != "q" and value is not None
        }
        probes = options.pop("nprobes", None)
        if probes is not None:
            options |= {"minimum_nprobes": probes, "maximum_nprobes": probes}
        options.pop("use_index", None)
        if "minimum_nprobes" in options:
            most = options.pop("maximum_nprobes", None)
            options["maximum_nprobes"] = "None" if most is None else f"Some({most})"
        parameters = ", ".join(f"{name}={value}" for name, value in options.items())
        for step in searched:
            kind, _, index_name = step.partition(" ")
            steps.append(f"{kind}: {parameters}" + (f", index={index_name}" if index_name else ""))
    else:
        steps.append(f"MatchQuery: query={request.full_text_query}")
    return steps


def _scan_steps(scan: Scan, condition: Condition | None, verbose: bool) -> list[str]:
    total = len(scan.fragments)
    tasks = scan.plan_tasks(condition)
    remaining = {task.message.id for task in tasks}
    table_columns = [name for name in scan.names if name not in SYSTEM_COLUMNS]
    filter_columns = () if condition is None else condition.columns
    read = ", ".join(
        dict.fromkeys([*table_columns, *(name for name in filter_columns if name not in SYSTEM_COLUMNS)])
    )
    line = f"LanceRead: uri={scan.store.uri(scan.root)}, projection=[{read}], num_fragments={len(tasks)}"
    rows = sum(scan.live_rows(fragment) for fragment in scan.fragments if fragment.id in remaining)
    line += f", version={scan.manifest.version}, rows={rows}"
    if condition is None:
        return [f"{line}, full_filter=--"]
    line += f", full_filter={condition_text(condition)}"
    if len(tasks) < total:
        left = [fragment.id for fragment in scan.fragments if fragment.id not in remaining]
        line += f", pruned_fragments={_fragment_list(left)} of {total}"
    selected = [task for task in tasks if task.selection is not None]
    if selected:
        line += f", row_lists={len(selected)} of {len(tasks)} fragments"
    if verbose and (ranges := _page_ranges(tasks, condition)):
        line += f", page_ranges={ranges}"
    steps = [line]
    for pruner in scan.pruners:
        for text, name, kind in find_used_indexes(pruner, condition):
            steps.append(f"ScalarIndexQuery: query=[{text}]@{name}({kind})")
    return steps


def _page_ranges(tasks: Sequence[Any], condition: Condition) -> str:
    """Return the row ranges per fragment that remain after pruning by page statistics, if any are pruned."""
    ranges = []
    for task in tasks:
        if task.selection is None:
            runs, rows = task.runs(condition)
            if runs != [(0, rows)]:
                text = "+".join(f"{start}..{stop}" for start, stop in runs) or "none"
                ranges.append(f"{_fragment_id(task.message)}:{text} of {rows}")
    more = f" and {len(ranges) - _SHOWN_FRAGMENTS} more" if len(ranges) > _SHOWN_FRAGMENTS else ""
    return f"[{', '.join(ranges[:_SHOWN_FRAGMENTS])}{more}]" if ranges else ""


def _bytes_of(fragment: table_pb2.DataFragment) -> int:
    return sum(file.file_size_bytes for file in fragment.files)


def _fragment_id(fragment: table_pb2.DataFragment) -> int:
    return fragment.id


def _fragment_list(numbers: Sequence[int]) -> str:
    more = f", and {len(numbers) - _SHOWN_FRAGMENTS} more" if len(numbers) > _SHOWN_FRAGMENTS else ""
    return f"[{', '.join(map(str, numbers[:_SHOWN_FRAGMENTS]))}{more}]"


_TABLE_BYTES = 64 << 20


class Searcher(ABC):
    """The searches of a source."""

    @abstractmethod
    def run(self, request: ScanRequest, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a search, with its additional columns such as `_distance`."""

    @abstractmethod
    def added_columns(self, request: ScanRequest) -> pa.Schema:
        """Return the schema of the additional columns of a search."""

    def steps(self, request: ScanRequest) -> Sequence[str]:  # noqa: ARG002
        """Return the plan steps of a vector search."""
        return ("KNNVectorDistance",)


class ScanSource(ABC):
    """The source of a scanner: a version of a table, or a fragment of it."""

    @property
    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The version."""

    @abstractmethod
    def plan_scan(
        self, columns: Sequence[str] | None, with_row_id: bool = False, with_row_address: bool = False
    ) -> Scan:
        """Return a scan plan for columns of the source's rows; None for all columns."""

    @property
    def searcher(self) -> Searcher:
        """Vector and full-text search.

        Raises:
            OptionError: the source cannot be searched.
        """
        raise OptionError(
            "a fragment cannot be searched: call LanceDataset.scanner(fragments=[...]) of the table"
        )


@dataclass(frozen=True)
class LanceScanner(SpellingHintMixin):
    """A read that can run, count or explain its rows. Get it from `LanceDataset.scanner`.

    It exports an Arrow stream.

    Attributes:
        source: the version or fragment to read.
        request: the arguments of the read.
    """

    source: ScanSource
    request: ScanRequest

    def to_table(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        parts = list(self._parts(_TABLE_BYTES))
        if not parts:
            return pa.Table.from_batches([], self.projected_schema)
        if not self.projected_schema.names:
            return rows_without_columns(sum(part.num_rows for part in parts))
        return pa.concat_tables(parts)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Stream the rows as record batches of at most `batch_size` rows, about `batch_bytes` bytes each."""
        yield from rebatch(self._parts(self.request.batch_bytes), self.request.batch_size)

    def to_reader(self) -> pa.RecordBatchReader:
        """Stream the rows as a RecordBatchReader."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the rows through Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        """Export the schema of the rows through Arrow's C data interface."""
        return self.projected_schema.__arrow_c_schema__()

    def to_pandas(self, **options: Any) -> Any:
        """Return the rows as a pandas DataFrame; `options` are arguments of `pyarrow.Table.to_pandas`."""
        return self.to_table().to_pandas(**options)

    def count_rows(self) -> int:
        """Return the number of rows. Reads only the columns of the filter."""
        request = self.request
        if request.is_search or request.include_deleted_rows:
            return int(self.to_table().num_rows)
        scan = self._plan([])
        if request.filter is None:
            rows = scan.count()
        else:
            rows = sum(table.num_rows for table in scan.tables(request.filter))
        rows = max(0, rows - (request.offset or 0))
        return rows if request.limit is None else min(rows, request.limit)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first `num_rows` rows."""
        limit = self.request.limit
        most = num_rows if limit is None else min(num_rows, limit)
        return replace(self, request=replace(self.request, limit=most)).to_table()

    def take(self, indices: Sequence[int] | pa.Array) -> pa.Table:
        """Return the rows at positions in the result, in the given order."""
        return self.to_table().take(pa.array(indices, pa.int64()))

    @cached_property
    def projected_schema(self) -> pa.Schema:
        """The schema of the rows."""
        schema = self._plan(self._projection.reads).arrow_schema
        if self.request.is_search:
            schema = self._search_schema(schema)
        schema = restore_schema_types(self._projection.schema(schema, self._additional_columns))
        for name in self._blobs:
            if (place := schema.get_field_index(name)) >= 0:
                schema = schema.set(place, pa.field(name, pa.large_binary(), schema.field(place).nullable))
        return schema

    def _search_schema(self, read: pa.Schema) -> pa.Schema:
        """Return the schema of a search result, in which distance or score come before row ids."""
        request = self.request
        columns = list(self._measured)
        if request.disable_scoring_autoprojection and request.columns is not None:
            columns = [field for field in columns if field.name in (self._projection.reads or ())]
        names = {field.name for field in columns}
        first = [field for field in columns if field.name == "query_index"]
        flag_fields = [field for field in read if field.name in self._flags]
        table_fields = [field for field in read if field.name not in {*names, *self._flags}]
        if request.columns is not None and self._projection.outputs is None:
            fields = {field.name: field for field in (*table_fields, *columns, *read)}
            table_fields = [fields[name] for name in self._projection.reads or () if name not in self._flags]
        fields = {field.name: field for field in (*first, *table_fields, *columns, *flag_fields)}
        return pa.schema(list(fields.values()), read.metadata)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows; an alias of `projected_schema`."""
        return self.projected_schema

    @property
    def dataset_schema(self) -> pa.Schema:
        """The schema of the table."""
        return restore_schema_types(self.source.snapshot.schema.to_arrow())

    def explain_plan(self, verbose: bool = False) -> str:
        """Return the plan of the read as a tree with the last step first.

        It lists the pruned fragments and the indexes that the filter uses.

        Args:
            verbose: open all fragments, and list the rows that remain after pruning by page statistics.
        """
        from spark_lance.datasets.scanner import explain_scan

        searched = self.source.searcher.steps(self.request) if self.request.nearest is not None else ()
        scan = self._plan(self._reads)
        return explain_scan(self.request, self._projection, scan, self._condition, verbose, searched)

    def plan_picture(self) -> PlanPicture:
        """Return the plan of the read as a diagram for a notebook."""
        from spark_lance.datasets.show import PlanPicture

        scan = self._plan(self._reads)
        fragments = {fragment.id: _bytes_of(fragment) for fragment in scan.fragments}
        is_prefilter = not self.request.is_search or self.request.prefilter
        condition = self._condition if is_prefilter else None
        read_numbers = {_fragment_id(task.message) for task in scan.plan_tasks(condition)}
        uses = (
            ()
            if condition is None
            else (use for pruner in scan.pruners for use in find_used_indexes(pruner, condition))
        )
        return PlanPicture(
            self.explain_plan(verbose=True),
            {number: size for number, size in fragments.items() if number in read_numbers},
            {number: size for number, size in fragments.items() if number not in read_numbers},
            [f"{text} by {name} ({kind})" for text, name, kind in uses],
        )

    def analyze_plan(self) -> str:
        """Run the read and return its plan with times, row counts and I/O counts.

        Bytes and requests count all reads of the process during the run, including concurrent reads.
        """
        from spark_lance.datasets.scanner import analyze_scan, scanned_rows

        scanned = scanned_rows(self.request, self._plan(self._reads), self._condition)
        return analyze_scan(self.explain_plan(verbose=True), self._parts(self.request.batch_bytes), scanned)

    def __repr__(self) -> str:
        options = {
            "columns": self.request.columns,
            "filter": self.request.filter,
            "limit": self.request.limit,
        }
        text = ", ".join(f"{name}={value!r}" for name, value in options.items() if value is not None)
        return f"LanceScanner({text})"

    @cached_property
    def _measured(self) -> pa.Schema:
        """The additional columns of a search."""
        if not self.request.is_search:
            return pa.schema([])
        return self.source.searcher.added_columns(self.request)

    @cached_property
    def _projection(self) -> Projection:
        measured = self._measured if self.request.is_search else None
        return Projection.of(self.request.columns, self.source.snapshot.schema, measured)

    @property
    def _flags(self) -> list[str]:
        flags = ((ROW_ID, self.request.with_row_id), (ROW_ADDRESS, self.request.with_row_address))
        return [name for name, is_set in flags if is_set]

    @property
    def _additional_columns(self) -> list[str]:
        """The additional columns after the columns of the projection."""
        measured = self._measured.names if self.request.is_search else []
        return [*measured, *self._flags]

    @cached_property
    def _blobs(self) -> list[str]:
        """The blob columns to read as bytes."""
        from spark_lance.datasets.blob_bytes import blob_columns

        if self.request.blob_handling != "all_binary":
            return []
        schema = self.source.snapshot.schema
        columns = self._projection.reads
        return blob_columns(
            schema, tuple(field.name for field in schema.fields) if columns is None else columns
        )

    @property
    def _condition(self) -> Condition | None:
        filter = self.request.filter
        return None if filter is None else self._plan([]).condition(filter)

    @property
    def _reads(self) -> list[str]:
        """All columns to read: for the result, the sort order, blobs and deleted rows."""
        schema = self.source.snapshot.schema
        columns = self._projection.reads
        names = [field.name for field in schema.fields] if columns is None else list(columns)
        for ordering in self.request.order_by:
            names.append(self._order_path(ordering.column_name)[0])
        if self._blobs or self.request.include_deleted_rows:
            names.append(ROW_ADDRESS)
        return list(dict.fromkeys(names))

    def _order_path(self, column: str) -> list[str]:
        if column in (ROW_ID, ROW_ADDRESS) or column in self._measured.names:
            return [column]
        return [field.name for field in self.source.snapshot.schema.find(column, only_structs=True)]

    def _plan(self, columns: Sequence[str] | None) -> Scan:
        request = self.request
        names = None if columns is None else [c for c in columns if not self._is_measured(c)]
        scan = self.source.plan_scan(names, request.with_row_id, request.with_row_address)
        if request.fragments is not None:
            scan = replace(scan, fragments=tuple(request.fragments))
        if not request.use_scalar_index or request.include_deleted_rows:
            scan = replace(scan, pruners=())
        if request.include_deleted_rows:
            scan = replace(scan, fragments=tuple(_undelete(fragment) for fragment in scan.fragments))
        return scan

    def _is_measured(self, name: str) -> bool:
        return self.request.is_search and name in self._measured.names

    def _parts(self, target_bytes: int) -> Iterator[pa.Table]:
        """Yield the rows as tables of about `target_bytes`."""
        request = self.request
        if request.include_deleted_rows and ROW_ID not in (*self._flags, *(self._projection.reads or ())):
            raise OptionError(
                "include_deleted_rows is true and with_row_id is false: deleted rows are told by a null there"
            )
        offset, limit = request.offset or 0, request.limit
        if request.is_search:
            rows = [self.source.searcher.run(request, self._reads)]
            parts: Iterable[pa.Table] = rows if request.order_by else _limit_rows(rows, offset, limit)
        else:
            scan = self._plan(self._reads)
            if request.order_by:
                parts = scan.tables(request.filter, target_bytes)
            elif request.filter is None:
                parts = scan.slice(offset, limit, target_bytes)
            else:
                parts = _limit_rows(
                    scan.tables(request.filter, target_bytes, ahead=limit is None), offset, limit
                )
        if request.order_by:
            parts = self._sort_rows(parts)
        for part in parts:
            if part.num_rows:
                yield self._finish_rows(part)

    def _sort_rows(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        by, offset, limit = self.request.order_by, self.request.offset or 0, self.request.limit
        keyed = ((part, [self._key(part, how.column_name) for how in by]) for part in parts)
        rows = list(keyed) if limit is None else first_rows(keyed, by, offset + limit)
        if rows:
            table, keys = joined(rows)
            yield sorted_rows(table, list(zip(keys, by, strict=True))).slice(offset, limit)

    def _key(self, part: pa.Table, column: str) -> pa.ChunkedArray:
        first, *steps = self._order_path(column)
        return pc.struct_field(part[first], steps) if steps else part[first]

    def _finish_rows(self, part: pa.Table) -> pa.Table:
        """Return rows of the scan as rows of the result."""
        from spark_lance.datasets.blob_bytes import with_blob_bytes

        if self.request.include_deleted_rows:
            part = _clear_deleted_ids(part, self.source.snapshot)
        if self._blobs:
            part = with_blob_bytes(part, self.source.snapshot, self._blobs)
        part = self._projection.apply(part, self._additional_columns)
        names = self.projected_schema.names
        if not names:
            return rows_without_columns(part.num_rows)
        part = restore_table_types(part.select(names))
        return part.replace_schema_metadata(self.projected_schema.metadata)


def _undelete(fragment: table_pb2.DataFragment) -> table_pb2.DataFragment:
    """Return a fragment without its deletion file."""
    whole = table_pb2.DataFragment()
    whole.CopyFrom(fragment)
    whole.ClearField("deletion_file")
    return whole


def _clear_deleted_ids(rows: pa.Table, snapshot: Snapshot) -> pa.Table:
    """Set `_rowid` of deleted rows to null. The rows must have `_rowaddr`."""
    deleted_addresses = [
        row_addresses(fragment.id, snapshot.deletions(fragment).astype(np.int64))
        for fragment in snapshot.fragments
        if fragment.HasField("deletion_file")
    ]
    if not deleted_addresses:
        return rows
    deleted = np.isin(rows[ROW_ADDRESS].to_numpy(), np.concatenate(deleted_addresses))
    ids = pa.array(rows[ROW_ID].to_numpy(), mask=deleted)
    return rows.set_column(rows.schema.get_field_index(ROW_ID), pa.field(ROW_ID, pa.uint64()), ids)


def _limit_rows(parts: Iterable[pa.Table], offset: int, limit: int | None) -> Iterator[pa.Table]:
    """Skip `offset` rows of a stream of tables, then yield at most `limit` rows."""
    if limit == 0:
        return
    for part in parts:
        skipped = min(offset, part.num_rows)
        offset -= skipped
        rows = part.num_rows - skipped
        piece = part.slice(skipped, rows if limit is None else min(rows, limit))
        if piece.num_rows:
            limit = None if limit is None else limit - piece.num_rows
            yield piece
        # Reading the next table may need requests.
        if limit == 0:
            return
