"""Merge a source into a table by key: update matching rows, insert new rows, and delete missing rows.

The source's key columns and columns of conditions are held in memory. The table is streamed. The first pass
reads these columns of the rows that can have one of the keys, and determines the rows to change. The second
pass reads only the rows to copy. New fragments contain the changed rows, then the inserted rows. One Update
transaction contains all changes and the keys of inserted rows. So if two writers insert the same key
concurrently, the later writer searches its rows again. (Lance table format, update.)

Conditions apply to pairs of a source row and a table row, with columns source.x and target.x.

A small source is held in memory, a large source in a memory-mapped temporary file. A merge first compares
keys in memory and then takes whole rows of the source in the order of the table. The file is an Arrow IPC
stream, whose batches are views of the mapped file: the operating system keeps as much of it in memory as
fits. After a conflict, the merge runs again and reads the rows again.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import join, pick_rows
from spark_lance.errors import ExpressionError, MergeError, SchemaError, suggestion
from spark_lance.expressions.predicate import Condition, Predicate, compile_predicate
from spark_lance.expressions.values import plain
from spark_lance.file.base.schema import Field, Schema
from spark_lance.io.retry import RetryPolicy
from spark_lance.proto import index_pb2, table_pb2, transaction_pb2
from spark_lance.table.commits.commit import CONFLICT_RETRIES, retry_operation
from spark_lance.table.commits.proposal import SYSTEM_ENV, CommitEnv
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_keys import KeyIndex, check_key_type
from spark_lance.table.format.row_set import Addresses, Offsets, RowSet, address_offsets, runs_by_fragment
from spark_lance.table.reading.row_lookup import filterable_schema, read_rows
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.scan_task import ScanTask, read_ahead
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.rows.key_lookup import KeyFilter, KeyLookup, key_filter, key_lookup
from spark_lance.table.rows.row_rewrites import (
    CarriedRowIds,
    check_movable,
    commit_moves,
    prepare_moves,
    whole_rows,
    write_moved,
)
from spark_lance.table.schema.defaults import default_array, default_sql, generation_sql
from spark_lance.table.schema.keys import primary_key, sort_key_fields
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.targets import choose_targets

# A source of at most this size stays in memory.
SPILL_BYTES = 256 << 20


@dataclass(frozen=True)
class SourceRows:
    """The rows of a source, which can be read several times.

    Attributes:
        schema: the source's schema.
        batches: the rows.
        spilled: whether the rows are in a temporary file.
    """

    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]
    spilled: bool = False

    @classmethod
    def of(cls, table: pa.Table) -> SourceRows:
        """Return the rows of a table."""
        return cls(table.schema, table.to_batches())


@contextmanager
def source_rows(reader: pa.RecordBatchReader, limit: int = SPILL_BYTES) -> Iterator[SourceRows]:
    """Provide the rows of a stream, which is read once; above `limit` bytes they go to a temporary file."""
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size > limit:
            break
    else:
        yield SourceRows(reader.schema, batches)
        return
    with tempfile.TemporaryDirectory(prefix="spark-lance-merge-") as folder:
        path = str(Path(folder) / "rows.arrows")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, reader.schema) as writer:
            while batches:
                writer.write_batch(batches.pop(0))
            for batch in reader:
                writer.write_batch(batch)
        with pa.memory_map(path) as mapped:
            yield SourceRows(reader.schema, list(pa.ipc.open_stream(mapped)), spilled=True)


class AlignedSource:
    """The rows of a source in the types of a table, with some columns in memory.

    Args:
        rows: the source.
        aligner: converts the source to the table's types.
        names: the columns to hold in memory.

    Attributes:
        compared_columns: the columns in memory, each in one chunk.
        schema: the schema of all columns.
        row_bytes: the average size of a row in bytes.

    Raises:
        SchemaError: a value does not fit the table.
    """

    def __init__(self, rows: SourceRows, aligner: Aligner, names: Sequence[str]) -> None:
        self.schema = aligner.arrow_schema
        self._aligner, self._rows = aligner, rows
        parts, size = [], 0
        self._whole: pa.Table | None = None
        for batch in rows.batches:
            aligned = aligner.align(batch)
            size += aligned.nbytes
            parts.append(aligned.select(list(names)) if rows.spilled else aligned)
        if not rows.spilled:
            self._whole = _join_chunks(pa.Table.from_batches(parts, self.schema))
            self.compared_columns = self._whole.select(list(names))
        else:
            self.compared_columns = _join_chunks(
                pa.Table.from_batches(parts, pa.schema([self.schema.field(n) for n in names]))
            )
        self._ends = np.cumsum([batch.num_rows for batch in rows.batches], dtype=np.int64)
        self.row_bytes = size / max(1, self.compared_columns.num_rows)

    def pick(self, numbers: Int64Array) -> pa.Table:
        """Return rows with all columns by position, in the order of `numbers`."""
        if self._whole is not None:
            return pick_rows(self._whole, numbers)
        batch_numbers = np.searchsorted(self._ends, numbers, side="right")
        order = np.argsort(batch_numbers, kind="stable")
        cuts = np.flatnonzero(np.diff(batch_numbers[order])) + 1
        parts = [
            self._pick_from_batch(int(batch_numbers[part[0]]), numbers[part])
            for part in np.split(order, cuts)
            if len(part)
        ]
        if not parts:
            return self.schema.empty_table()
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pick_rows(pa.Table.from_batches(parts, self.schema), back)

    def _pick_from_batch(self, batch_number: int, numbers: Int64Array) -> pa.RecordBatch:
        """Return rows of the batch at position `batch_number`."""
        batch = self._rows.batches[batch_number]
        first = int(self._ends[batch_number]) - batch.num_rows
        selection = pick_rows(pa.Table.from_batches([batch]), numbers - first)
        (row,) = selection.combine_chunks().to_batches()
        return self._aligner.align(row)


def _join_chunks(table: pa.Table) -> pa.Table:
    columns = [pa.chunked_array(join(c.chunks), c.type) for c in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


@dataclass(frozen=True)
class MergeCondition:
    """A condition that is compiled for a source and a table.

    Attributes:
        condition: the condition on two struct columns, "source" and "target".
        source_columns, target_columns: the columns that the condition reads.
    """

    condition: Condition
    source_columns: tuple[str, ...]
    target_columns: tuple[str, ...]

    @classmethod
    def compile(cls, predicate: Predicate, source: pa.Schema, target: pa.Schema) -> MergeCondition:
        """Compile a condition.

        Raises:
            ExpressionError: the condition does not fit the columns.
        """
        compile_predicate(predicate, _pairs_schema(source, target))
        # A compiled condition knows only the structs that it reads: test which of their fields it needs.
        side_schemas = []
        for side in (source, target):
            column_fields = []
            for place, column in enumerate(side):
                fewer = side.remove(place)
                schemas = (fewer, target) if side is source else (source, fewer)
                if not _is_valid_condition(predicate, _pairs_schema(*schemas)):
                    column_fields.append(column)
            side_schemas.append(pa.schema(column_fields))
        condition = compile_predicate(predicate, _pairs_schema(*side_schemas))
        return cls(condition, tuple(side_schemas[0].names), tuple(side_schemas[1].names))

    def mask(
        self, target: pa.Table, places: Int64Array, source: pa.Table, rows: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Return a mask of the pairs of rows for which the condition is true.

        Args:
            target: rows of the table.
            places: int64, the position in `target` of each pair.
            source: rows of the source.
            rows: int64, the position in `source` of each pair.

        Raises:
            ExpressionError: the condition cannot be computed.
        """
        sides = {
            "source": _struct_of_rows(source, self.source_columns, rows),
            "target": _struct_of_rows(target, self.target_columns, places),
        }
        values = self.condition.mask(pa.table(sides)).fill_null(False)
        keep: npt.NDArray[np.bool_] = values.to_numpy()
        return keep


def _pairs_schema(source: pa.Schema, target: pa.Schema) -> pa.Schema:
    sides = (("source", source), ("target", target))
    return pa.schema([(name, pa.struct([_plain_field(field) for field in side])) for name, side in sides])


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain(pa.chunked_array([], field.type)).type)


def _is_valid_condition(predicate: Predicate, schema: pa.Schema) -> bool:
    try:
        compile_predicate(predicate, schema)
    except ExpressionError:
        return False
    return True


def _struct_of_rows(table: pa.Table, names: Sequence[str], rows: Int64Array) -> pa.Array:
    """Return columns of some rows as one struct column."""
    if not names:
        return pa.StructArray.from_buffers(pa.struct([]), len(rows), [None], children=[])
    selection = pick_rows(table.select(list(names)), rows)
    # Dictionaries of several chunks cannot always be merged.
    columns = [plain(column).combine_chunks() for column in selection.columns]
    return pa.StructArray.from_arrays(columns, fields=[_plain_field(field) for field in selection.schema])


Int64Array = npt.NDArray[np.int64]

_WINDOW_BYTES = 64 << 20
_WINDOW_ROWS = 1 << 22
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True)
class MergeRules:
    """The actions of a merge for rows of each kind.

    Attributes:
        on: the key columns; if empty, the table's primary key.
        matched: the action for table rows whose key is in the source: "keep", "update", "delete" or "fail".
        condition: with "update", the condition of the rows to update, on source.x and target.x.
        insert: whether to insert source rows whose key is not in the table.
        delete_missing: whether to delete table rows whose key is not in the source.
        missing: with `delete_missing`, the condition of the rows to delete.
        target_bases, target_all_bases: the locations of new files, see `choose_targets`.
        use_index: whether to look up keys in indexes; if not, the key columns are read.
    """

    on: tuple[str, ...] = ()
    matched: str = "keep"
    condition: Predicate | None = None
    insert: bool = False
    delete_missing: bool = False
    missing: Predicate | None = None
    target_bases: tuple[str, ...] = ()
    target_all_bases: bool | None = None
    use_index: bool = True


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge: the new version, and the numbers of inserted, updated and deleted rows."""

    manifest: Manifest
    num_inserted_rows: int
    num_updated_rows: int
    num_deleted_rows: int


@dataclass(frozen=True)
class PreparedMerge:
    """The operation of a merge whose files are written, and the numbers of changed rows."""

    operation: transaction_pb2.Transaction.Update
    num_inserted_rows: int
    num_updated_rows: int
    num_deleted_rows: int


def merge_rows(
    snapshot: Snapshot,
    source: pa.Table | SourceRows,
    rules: MergeRules,
    *,
    compacted: Sequence[index_pb2.CompactedSsTable] = (),
    reruns: RetryPolicy = CONFLICT_RETRIES,
    env: CommitEnv = SYSTEM_ENV,
) -> MergeResult:
    """Merge a source into a table.

    Args:
        snapshot: the version that is compared with the source.
        source: columns of the table, including the key. In missing columns, updated rows keep their values,
            and inserted rows get the default or null.
        rules: the actions of the merge.
        compacted: the SSTables of a MemWAL from which the source comes; recorded with the commit.
        reruns: the number of retries, and the pauses, after conflicts.
        env: clock, sleep and random numbers.

    Raises:
        SchemaError: the source does not fit the table, or a key column is missing or nested.
        ExpressionError: a condition does not fit the columns.
        MergeError: several source rows match the same table row; or a row matches, and the rule is "fail".
        RetryableConflictError: every attempt conflicted with another writer.
        CommitError: the commit failed; see its other subclasses.
        UnsupportedFormatError: the table needs a feature that we cannot write, or has blobs in structs.
    """
    rows = source if isinstance(source, SourceRows) else SourceRows.of(source)

    def attempt(base: Snapshot) -> MergeResult:
        merge = Merge.plan(base, rows, rules)
        merge.match()
        output = merge.write()
        fields = sorted(node.id for node in base.schema.walk())
        committed = commit_moves(
            output.changes, output.added, fields, env, output.inserted_keys, compacted=compacted
        )
        return MergeResult(committed, *merge.counts(output))

    return retry_operation(snapshot, attempt, reruns, env)


def prepare_merge(snapshot: Snapshot, source: SourceRows, rules: MergeRules) -> PreparedMerge:
    """Write the files of a merge and return the operation, which the caller commits.

    Args:
        snapshot: the version that is compared with the source; the read version of the commit.
        source: see `merge_rows`.
        rules: the actions of the merge.

    Raises:
        SchemaError, ExpressionError, MergeError, UnsupportedFormatError: see `merge_rows`.
    """
    merge = Merge.plan(snapshot, source, rules)
    merge.match()
    output = merge.write()
    fields = sorted(node.id for node in snapshot.schema.walk())
    operation = prepare_moves(output.changes, output.added, fields, output.inserted_keys)
    return PreparedMerge(operation, *merge.counts(output))


@dataclass(frozen=True)
class MergeOutput:
    """The changes that a merge commits.

    Attributes:
        changes: the rows to delete, including the old copies of updated rows.
        added: the fragments of new rows.
        inserted: the number of inserted rows.
        inserted_keys: the filter of the inserted keys, if the rules insert rows.
    """

    changes: RowChanges
    added: Sequence[table_pb2.DataFragment]
    inserted: int
    inserted_keys: KeyFilter | None


@dataclass
class Merge:
    """A merge into one version; call `plan`, then `match`, then `write`.

    Attributes:
        at: the version.
        rules: the actions of the merge.
        keys: the key columns.
        source: the source in the table's types and column order.
        index: the keys of the source.
        condition, missing: the rules' conditions, compiled for the version.
        matched_keys: for each code of `index`, whether the table has the key.
        updates: fragment id -> ascending offsets of the rows to update, and the source row for each.
        deletes: fragment id -> offsets of the rows to delete.
        lookup: the part of the table that was compared; None before `match`.
        compared: the number of rows that were compared.
    """

    at: Snapshot
    rules: MergeRules
    keys: tuple[Field, ...]
    source: AlignedSource
    index: KeyIndex
    condition: MergeCondition | None
    missing: Condition | None
    matched_keys: npt.NDArray[np.bool_]
    updates: dict[int, tuple[Offsets, Int64Array]] = field(default_factory=dict)
    deletes: dict[int, Offsets] = field(default_factory=dict)
    lookup: KeyLookup | None = None
    compared: int = 0

    @classmethod
    def plan(cls, at: Snapshot, source: SourceRows, rules: MergeRules) -> Merge:
        """Return the merge of a source into a version, with keys and conditions compiled."""
        check_movable(at.manifest)
        base = at.manifest
        keys = _key_fields(base.schema, rules.on)
        aligner = _make_aligner(source.schema, base.schema, keys, rules.insert)
        condition = missing = None
        if rules.matched == "update" and rules.condition is not None:
            condition = MergeCondition.compile(rules.condition, aligner.arrow_schema, filterable_schema(base))
        if rules.delete_missing and rules.missing is not None:
            missing = compile_predicate(rules.missing, filterable_schema(base))
        compared = dict.fromkeys(key.name for key in keys)
        compared.update(dict.fromkeys(condition.source_columns if condition else ()))
        aligned = AlignedSource(source, aligner, list(compared))
        index = KeyIndex([aligned.compared_columns[key.name] for key in keys])
        matched_keys = np.zeros(index.size, np.bool_)
        return cls(at, rules, keys, aligned, index, condition, missing, matched_keys)

    @property
    def base(self) -> Manifest:
        """The version's manifest."""
        return self.at.manifest

    def scan(self) -> Scan:
        """Return the scan of all rows for the columns that the merge compares."""
        names = {key.name for key in self.keys}
        names.update(self.condition.target_columns if self.condition else ())
        names.update(self.missing.columns if self.missing else ())
        scan = self.at.scan(sorted(names), with_row_address=True)
        return scan if self.rules.use_index else replace(scan, pruners=())

    def match(self) -> None:
        """Compare the source with the table rows that a rule can apply to, and collect the changes."""
        for window in self._read_windows(self.scan()):
            self.compared += window.num_rows
            addresses = window[ROW_ADDRESS].to_numpy()
            codes = self.index.lookup([window[key.name] for key in self.keys])
            self.matched_keys[codes[codes >= 0]] = True
            if self.rules.matched in ("update", "delete"):
                self._collect_changes(window, addresses, codes)
            elif self.rules.matched == "fail" and (codes >= 0).any():
                raise MergeError(
                    f"a row of the table has a key of the source: {self._key_text(codes[codes >= 0][0])}"
                )
            if self.rules.delete_missing:
                missing_rows = np.flatnonzero(codes < 0)
                if self.missing is not None:
                    mask = self.missing.mask(pick_rows(window, missing_rows)).fill_null(False)
                    missing_rows = missing_rows[mask.to_numpy()]
                self._collect_deletes(addresses[missing_rows])

    def _read_windows(self, scan: Scan) -> Iterator[pa.Table]:
        """Yield the table rows that can have a key of the source, and the rows that may be deleted."""
        if self.rules.delete_missing and self.missing is None:
            self.lookup = KeyLookup(scan.tasks(), "nothing")
        else:
            self.lookup = key_lookup(scan, self.keys, self.source.compared_columns, self.missing)
        return _concat_tables(self.lookup.tasks)

    def _collect_changes(self, window: pa.Table, addresses: Addresses, codes: Int64Array) -> None:
        """Collect the rows of a window to update or to delete."""
        places, sources = self.index.pairs(codes)
        if self.condition is not None:
            keep = self.condition.mask(window, places, self.source.compared_columns, sources)
            places, sources = places[keep], sources[keep]
        repeated = np.flatnonzero(places[1:] == places[:-1])
        if len(repeated):
            raise MergeError(
                "several rows of the source match one row of the table, which may be matched once at most: "
                + self._key_text(codes[places[repeated[0]]])
            )
        if self.rules.matched == "delete":
            self._collect_deletes(addresses[places])
            return
        for number, part in runs_by_fragment(addresses[places]):
            offsets, rows = address_offsets(addresses[places[part]]), sources[part]
            if number in self.updates:
                before = self.updates[number]
                offsets, rows = np.concatenate([before[0], offsets]), np.concatenate([before[1], rows])
            self.updates[number] = offsets, rows

    def _collect_deletes(self, addresses: Addresses) -> None:
        for number, part in runs_by_fragment(addresses):
            offsets = address_offsets(addresses[part])
            before = self.deletes.get(number, np.empty(0, np.uint32))
            self.deletes[number] = np.union1d(before, offsets)

    def _key_text(self, code: int) -> str:
        """Return the key of a code as text."""
        row = int(np.flatnonzero(self.index.codes == code)[0])
        return ", ".join(
            f"{key.name} = {self.source.compared_columns[key.name][row].as_py()!r}" for key in self.keys
        )

    def write(self) -> MergeOutput:
        """Write the rows that `match` selected to new fragments."""
        inserted = np.empty(0, np.int64)
        if self.rules.insert:
            inserted = np.flatnonzero(~np.append(self.matched_keys, False)[self.index.codes])
        rows = {number: offsets for number, (offsets, _) in self.updates.items()}
        for number, offsets in self.deletes.items():
            rows[number] = np.union1d(rows[number], offsets) if number in rows else offsets
        ids = CarriedRowIds(self.at)
        rules = self.rules
        targets = choose_targets(self.at.bases, rules.target_bases, rules.target_all_bases)
        added = write_moved(self.at, self._new_rows(inserted, ids), ids, targets=targets)
        keys = self._inserted_keys(inserted) if rules.insert else None
        return MergeOutput(RowChanges(self.at, RowSet.from_offsets(rows)), added, len(inserted), keys)

    def counts(self, output: MergeOutput) -> tuple[int, int, int]:
        """Return the numbers of inserted, updated and deleted rows."""
        updated = sum(len(offsets) for offsets, _ in self.updates.values())
        return output.inserted, updated, sum(len(offsets) for offsets in self.deletes.values())

    def _new_rows(self, inserted: Int64Array, ids: CarriedRowIds) -> Iterator[pa.Table]:
        """Yield the updated rows in table order, then the inserted rows in source order."""
        fields = self.base.schema.fields
        copied = [f for f in fields if f.name not in self.source.schema.names]
        offsets = {number: part for number, (part, _) in self.updates.items()}
        positions: dict[int, int] = {}
        pieces = read_rows(self.at, offsets, copied, _PIECE_BYTES, self.source.row_bytes)
        for number, part, old in pieces:
            start = positions.get(number, 0)
            positions[number] = start + len(part)
            new = self.source.pick(self.updates[number][1][start : start + len(part)])
            ids.add_rows(number, part)
            yield whole_rows(fields, new, old)
        step = max(1, int(_PIECE_BYTES / max(self.source.row_bytes, 0.125)))
        for first in range(0, len(inserted), step):
            new = self.source.pick(inserted[first : first + step])
            others = {f.name: default_array(f, new.num_rows) for f in copied}
            yield whole_rows(fields, new, others)

    def _inserted_keys(self, inserted: Int64Array) -> KeyFilter:
        """Return the filter of the keys of inserted rows, without keys with nulls, which equal no key."""
        fields = sort_key_fields(self.base.schema, self.keys)
        rows = inserted[self.index.codes[inserted] >= 0]
        keys = pick_rows(self.source.compared_columns.select([key.name for key in fields]), rows)
        return key_filter([key.id for key in fields], keys.columns)


def _key_fields(schema: Schema, on: Sequence[str]) -> tuple[Field, ...]:
    """Return the distinct key columns.

    Raises:
        SchemaError: a column does not exist or cannot be a key, or the table has no primary key.
    """
    if on:
        keys = tuple(dict.fromkeys(schema.field(name) for name in on))
    else:
        keys = primary_key(schema)
        if not keys:
            raise SchemaError(
                "a merge needs key columns, as in merge_insert('id'), because the table has no primary key"
            )
    for key in keys:
        if key not in schema.fields:
            raise SchemaError(f"the key column {key.name!r} is inside another column")
        if key.is_blob:
            raise SchemaError(f"the blob column {key.name!r} cannot be a key")
        check_key_type(key.name, key.arrow_type())
    return keys


def _make_aligner(source: pa.Schema, schema: Schema, keys: Sequence[Field], insert: bool) -> Aligner:
    """Return the aligner that converts source rows to the table's types and column order."""
    for key in keys:
        if key.name not in source.names:
            raise SchemaError(
                f"the source lacks the key column {key.name!r}; it has {', '.join(source.names)}"
                f"{suggestion(key.name, source.names)}"
            )
    for top in schema.fields:
        if top.name in source.names or not insert:
            continue
        if default_sql(top) is not None or generation_sql(top) is not None:
            default_array(top, 0)
        elif not top.nullable:
            raise SchemaError(f"column {top.name!r} must not be null, so rows without it are not inserted")
    present = tuple(top for top in schema.fields if top.name in source.names)
    return Aligner(source, Schema(present, schema.metadata))


def _concat_tables(tasks: Sequence[ScanTask]) -> Iterator[pa.Table]:
    """Yield the rows of tasks in tables of about `_WINDOW_BYTES`, across fragments."""
    waiting: list[pa.Table] = []
    rows = size = 0
    reads = [partial(task.tables, _WINDOW_BYTES) for task in tasks]
    for tables in read_ahead(tasks, reads, _WINDOW_BYTES):
        for table in tables:
            waiting.append(table)
            rows, size = rows + table.num_rows, size + table.nbytes
            if rows >= _WINDOW_ROWS or size >= _WINDOW_BYTES:
                yield pa.concat_tables(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.concat_tables(waiting)
