"""WAL entries and their rows: one Arrow IPC stream per write to a shard, in a separate file.

    stream      schema message | record batches | end of stream        uncompressed, or LZ4 or ZSTD bodies
    metadata    writer_epoch    decimal, the epoch of the writer; mandatory
    of schema   generation      decimal, the generation of the rows' SSTable; absent: the current generation
                fence_sentinel  "true": an entry without fields and rows, which a new writer adds at the end

The fields are the table's columns in order, nullable except for the key, and `_tombstone: bool`. It is true
in rows that delete a key; their other columns are null. Field metadata `lance:field_id` is the id of the
field, also for nested fields. Columns are matched by this id, or else by name; missing columns are null.
(MemWAL, WAL entry.)

Positions are consecutive. A replay reads entries until the first missing position, so a reader sees a prefix
of the writes. If later entries have rows, rows are lost, and an error is raised. Later sentinels alone are
legal: a writer of pylance that opens a shard takes a temporary file of a killed writer for an entry, and puts
its sentinel after it. The next write fills the missing position.

The file of an entry is created only if it does not exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import join
from spark_lance.arrow.texts import check_texts
from spark_lance.errors import FormatError, OptionError, SchemaError, WalEntryError, WalHoleError
from spark_lance.file.base.limits import check_arrow_stream
from spark_lance.file.base.schema import Field, Schema
from spark_lance.memwal.names import ShardPaths, parse_numbers
from spark_lance.memwal.shard_manifest import load_shard
from spark_lance.table.writing.align import Aligner

TOMBSTONE = "_tombstone"
EPOCH, GENERATION, SENTINEL = b"writer_epoch", b"generation", b"fence_sentinel"
FIELD_ID = b"lance:field_id"
# In the sentinel of a compaction, which claims the shard only to flush its log.
FLUSH = b"spark_lance.flush"
_PARALLEL_READS = 16


@dataclass(frozen=True)
class WalEntry:
    """An entry that was read.

    Attributes:
        position: the position in the log, from 1.
        epoch: the epoch of the writer.
        generation: the generation of the rows' SSTable; None for the shard's current generation.
        rows: the rows, with the columns of `log_schema`; None for a sentinel.
        metadata: the metadata of the entry's schema.
        nbytes: the size of the entry in bytes.
    """

    position: int
    epoch: int
    generation: int | None
    rows: pa.Table | None
    metadata: Mapping[bytes, bytes]
    nbytes: int


def wal_fields(schema: Schema) -> tuple[Field, ...]:
    """Return the fields of a table for logged rows: all fields except the key are nullable."""
    return tuple(field if field.key_position is not None else _nullable(field) for field in schema.fields)


def _nullable(field: Field) -> Field:
    return Field(field.id, field.name, field.logical_type, True, field.children, field.metadata)


def log_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of logged rows: the columns of a table, and `_tombstone`."""
    fields = [_with_ids(field.arrow_field(), field) for field in wal_fields(schema)]
    return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])


def _with_ids(arrow: pa.Field, field: Field) -> pa.Field:
    """Return an Arrow field with the ids of the field and of its children in the metadata."""
    metadata = {**(arrow.metadata or {}), FIELD_ID: str(field.id).encode()}
    kind = arrow.type
    if field.children and pa.types.is_struct(kind):
        kind = pa.struct([_with_ids(kind.field(i), child) for i, child in enumerate(field.children)])
    elif field.children and pa.types.is_fixed_size_list(kind):
        kind = pa.list_(_with_ids(kind.value_field, field.children[0]), kind.list_size)
    elif field.children and pa.types.is_large_list(kind):
        kind = pa.large_list(_with_ids(kind.value_field, field.children[0]))
    elif field.children and pa.types.is_list(kind):
        kind = pa.list_(_with_ids(kind.value_field, field.children[0]))
    return pa.field(arrow.name, kind, arrow.nullable, metadata)


def pack_entry(
    rows: pa.Table | Sequence[pa.RecordBatch],
    schema: pa.Schema,
    epoch: int,
    generation: int,
    metadata: Mapping[str, str] | None = None,
) -> pa.Buffer:
    """Return the bytes of an entry.

    Args:
        rows: the rows, with the columns of `schema`.
        schema: see `log_schema`.
        epoch, generation: the epoch of the writer, and the generation of the rows.
        metadata: more key-value pairs, which other readers ignore.
    """
    schema_metadata: dict[bytes | str, bytes | str] = {EPOCH: str(epoch), GENERATION: str(generation)}
    schema_metadata.update(metadata or {})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata(schema_metadata)) as writer:
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
            writer.write_batch(batch.replace_schema_metadata(schema_metadata))
    return sink.getvalue()


def pack_sentinel(epoch: int, mark: str, *, flush: bool = False) -> bytes:
    """Return the bytes of a sentinel, with which a new writer stops its predecessor.

    Args:
        epoch: the epoch of the new writer.
        mark: a unique text, by which the writer recognizes its own sentinel.
        flush: whether the new writer only flushes the log, so that its predecessor may claim the shard again.
    """
    metadata = {EPOCH: str(epoch), SENTINEL: "true", b"spark_lance.mark": mark}
    if flush:
        metadata[FLUSH] = "true"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([], metadata)):
        pass
    return bytes(sink.getvalue())


def read_entry(paths: ShardPaths, position: int, schema: Schema) -> WalEntry:
    """Read an entry.

    Args:
        paths: the shard.
        position: the position of the entry.
        schema: the table's schema, to which the rows are converted.

    Raises:
        FileNotFoundError: the entry does not exist.
        WalEntryError: the entry is truncated, damaged, or has no epoch.
    """
    path = paths.entry(position)
    data = paths.store.read(path)
    try:
        check_arrow_stream(data)
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            rows = reader.read_all()
        # Arrow accepts a truncated stream, but a complete one ends with this marker.
        if not data.endswith(b"\xff\xff\xff\xff\0\0\0\0"):
            raise WalEntryError("the entry is incomplete")
        rows.validate(full=True)
        metadata = dict(rows.schema.metadata or {})
        epoch = int(metadata[EPOCH])
        generation = int(metadata[GENERATION]) if GENERATION in metadata else None
    except FormatError as error:
        raise _damaged_entry(error, path, position) from None
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _damaged_entry(error, path, position) from error
    except (KeyError, ValueError) as error:
        raise _damaged_entry(f"its metadata lacks {error}", path, position) from error
    if metadata.get(SENTINEL) == b"true":
        return WalEntry(position, epoch, generation, None, metadata, len(data))
    try:
        result = fit_rows(rows, schema)
    except (pa.ArrowException, WalEntryError) as error:
        raise _damaged_entry(error, path, position) from error
    return WalEntry(position, epoch, generation, result, metadata, len(data))


def _damaged_entry(why: object, path: str, position: int) -> WalEntryError:
    return WalEntryError(
        f"log entry {position} is damaged, and its rows are lost: {why}. Set accept_loss=True to skip them",
        path=path,
    )


def fit_rows(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return logged rows converted to the table's current columns, and `_tombstone`.

    Raises:
        WalEntryError: a value does not fit, or a key column is missing.
    """
    fields, arrays = [], []
    by_id = {_field_id(field): place for place, field in enumerate(rows.schema)}
    for field in wal_fields(schema):
        arrow = field.arrow_field()
        place = by_id.get(field.id)
        if place is None:
            place = rows.schema.get_field_index(field.name)
            if place >= 0 and _field_id(rows.schema.field(place)) not in (None, field.id):
                place = -1  # another column, which had this name before
        if place < 0:
            if not arrow.nullable:
                raise WalEntryError(f"it lacks the key column {field.name!r}")
            arrays.append(pa.nulls(rows.num_rows, arrow.type))
        else:
            values = [_fit_array(chunk, arrow.type) for chunk in rows.column(place).chunks]
            arrays.append(pa.chunked_array(values, arrow.type))
        fields.append(arrow)
    place = rows.schema.get_field_index(TOMBSTONE)
    if place < 0:
        marks = pa.chunked_array([pa.array([False] * rows.num_rows, pa.bool_())])
    else:
        marks = rows.column(place).fill_null(False)
    fields.append(pa.field(TOMBSTONE, pa.bool_(), nullable=False))
    return pa.Table.from_arrays([*arrays, marks], schema=pa.schema(fields))


def _field_id(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(FIELD_ID)
    return int(text) if text is not None and text.isdigit() else None


def _fit_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in another type, with fields of structs matched by name; other values are cast."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if array.type == kind:
        return array
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        parts = []
        for target in kind:
            place = array.type.get_field_index(target.name)
            if place < 0:
                parts.append(pa.nulls(len(array), target.type))
            else:
                parts.append(_fit_array(array.field(place), target.type))
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    return array.cast(kind)


@dataclass(frozen=True)
class Tail:
    """The end of a shard's log, whose rows are not in SSTables.

    Attributes:
        entries: the entries in order, including sentinels.
        next_position: the first free position. Only sentinels can be after it.
        lost: whether missing or damaged entries were skipped.
    """

    entries: tuple[WalEntry, ...]
    next_position: int
    lost: bool = False


def read_tail(paths: ShardPaths, after: int, schema: Schema, *, accept_loss: bool = False) -> Tail:
    """Read all entries after a position.

    Args:
        paths: the shard.
        after: the last position whose rows are in SSTables.
        schema: the table's schema.
        accept_loss: whether to skip missing or damaged entries that have later entries.

    Raises:
        WalHoleError: an entry is missing, and later entries have rows.
        WalEntryError: an entry cannot be read.
        TailMovedError: entries were collected concurrently: read again with the newest manifest.
    """

    def read(position: int) -> WalEntry | None:
        try:
            return read_entry(paths, position, schema)
        except FileNotFoundError:
            _check_collected(paths, position)
            return None
        except WalEntryError:
            if accept_loss:
                return None
            raise

    has_loss = False
    numbers = [number for number in parse_numbers(list(paths.store.list(paths.entries))) if number > after]
    missing = _first_missing(numbers, after + 1)
    while missing <= (numbers[-1] if numbers else 0):
        # A listing is not atomic: an entry that it lacks may have been created during the listing.
        if not paths.store.exists(paths.entry(missing)):
            _check_collected(paths, missing)
            later = [number for number in numbers if number > missing]
            if all((entry := read(number)) is not None and entry.rows is None for number in later):
                numbers = [number for number in numbers if number < missing]
                break
            if not accept_loss:
                raise _hole_error(paths, missing, numbers)
            has_loss = True
            break
        numbers = sorted({*numbers, missing})
        missing = _first_missing(numbers, missing)
    with ThreadPoolExecutor(1 if paths.store.is_local else _PARALLEL_READS) as pool:
        entries = [entry for entry in pool.map(read, numbers) if entry is not None]
    has_loss |= len(entries) < len(numbers)
    position = (numbers[-1] if numbers else after) + 1
    while (entry := read(position)) is not None:
        entries.append(entry)
        position += 1
    return Tail(tuple(entries), position, has_loss)


def _first_missing(numbers: Sequence[int], position: int) -> int:
    present = set(numbers)
    while position in present:
        position += 1
    return position


def _hole_error(paths: ShardPaths, missing: int, numbers: Sequence[int]) -> WalHoleError:
    later = [number for number in numbers if number > missing]
    return WalHoleError(
        f"log entry {missing} is missing before {len(later)} later entries (up to {later[-1]}), and its rows "
        "are lost. Set accept_loss=True to skip missing entries",
        path=paths.entries,
    )


class TailMovedError(Exception):
    """Entries to read were written to an SSTable and collected: the read must start again."""


def _check_collected(paths: ShardPaths, position: int) -> None:
    newest = load_shard(paths)
    if newest is not None and newest.replay_after_wal_entry_position >= position:
        raise TailMovedError(
            f"log entry {position} of shard {paths.shard} was written to an SSTable during the read"
        )


def entries_to_table(entries: Sequence[WalEntry], schema: Schema) -> pa.Table:
    """Return the rows of entries as one table, oldest first, each column in one chunk if possible."""
    tables = [entry.rows for entry in entries if entry.rows is not None]
    if not tables:
        fields = [field.arrow_field() for field in wal_fields(schema)]
        return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)]).empty_table()
    table = pa.concat_tables(tables)
    columns = [pa.chunked_array(join(column.chunks), column.type) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def group_by_generation(entries: Sequence[WalEntry], current: int) -> Iterator[tuple[int, list[WalEntry]]]:
    """Yield (generation, entries) from the current generation on, oldest first; older entries are flushed."""
    pending: list[WalEntry] = []
    generation = current
    for entry in entries:
        entry_generation = current if entry.generation is None else entry.generation
        if entry.rows is None or entry_generation < current:
            continue
        if entry_generation != generation and pending:
            yield generation, pending
            pending = []
        generation = entry_generation
        pending.append(entry)
    if pending:
        yield generation, pending


def entry_mark() -> str:
    """Return a unique text for an entry."""
    return uuid.uuid4().hex


def plain_schema(schema: Schema) -> pa.Schema:
    """Return the schema of logged rows in memory: the schema of the log without field metadata."""
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in log_schema(schema)])


def logged_rows(schema: Schema, reader: pa.RecordBatchReader) -> pa.Table:
    """Return rows in the schema of the log: all columns of the table in order, and `_tombstone`.

    Missing nullable columns are null.

    Raises:
        SchemaError: the rows do not fit the table, or a NOT NULL column has a null.
    """
    aligner = Aligner(reader.schema, Schema(wal_fields(schema), schema.metadata))
    present = aligner.arrow_schema.names
    missing = [field.name for field in schema.fields if not field.nullable and field.name not in present]
    if missing:
        raise SchemaError(f"column {missing[0]!r} is NOT NULL, but the data lacks it: add the column")
    rows = pa.Table.from_batches([aligner.align(batch) for batch in reader], aligner.arrow_schema)
    for column in schema.fields:
        if not column.nullable and rows[column.name].null_count:
            raise SchemaError(f"column {column.name!r} is NOT NULL, but the data has a null in it")
    return _complete_rows(schema, rows, dead=False)


def check_rows(rows: pa.Table) -> None:
    """Check that all text is valid UTF-8, because a log with other bytes could not be read.

    Raises:
        SchemaError: a text is not valid; the message has the field, the row and the byte.
    """
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        first = 0
        for chunk in column.chunks:
            check_texts(chunk, name, first)
            first += len(chunk)


def logged_keys(schema: Schema, reader: pa.RecordBatchReader) -> pa.Table:
    """Return the log rows that delete keys; other columns of the input are ignored.

    Raises:
        OptionError: the table has no primary key.
        SchemaError: a key column is missing or has a null.
    """
    key_schema = Schema(tuple(field for field in schema.fields if field.key_position is not None))
    if not key_schema.fields:
        raise OptionError("delete needs a primary key, and the table has none: create the table with one")
    names = [field.name for field in key_schema.fields]
    absent = [name for name in names if name not in reader.schema.names]
    if absent:
        raise SchemaError(f"the keys lack the primary key column {absent[0]!r}: add it")
    table = reader.read_all().select(names)
    aligner = Aligner(table.schema, key_schema)
    batches = [aligner.align(batch) for batch in table.to_batches()]
    return _complete_rows(schema, pa.Table.from_batches(batches, aligner.arrow_schema), dead=True)


def _complete_rows(schema: Schema, rows: pa.Table, *, dead: bool) -> pa.Table:
    """Return rows with all columns of the log, each in one chunk; missing columns are null."""
    count = rows.num_rows
    columns = []
    plain = plain_schema(schema)
    for target in plain:
        if target.name == TOMBSTONE:
            columns.append(pa.chunked_array([pc.fill_null(pa.nulls(count, pa.bool_()), dead)]))
        elif target.name in rows.column_names:
            chunks = join(rows[target.name].chunks)
            columns.append(pa.chunked_array(chunks, rows[target.name].type).cast(target.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(count, target.type)], target.type))
    return pa.Table.from_arrays(columns, schema=plain)
