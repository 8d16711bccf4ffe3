"""WAL entries and their rows: one Arrow IPC stream per write of a shard, in a file of its own.

    stream      schema message | record batches | end of stream        uncompressed, or LZ4 or ZSTD bodies
    metadata    writer_epoch    decimal, of the writer; mandatory
    of schema   generation      decimal, of the SSTable that the rows will be in; absent: the current one
                fence_sentinel  "true": a mark without fields and rows that a new writer puts at the end

The fields are the table's columns in its order, those outside the key nullable, and `_tombstone: bool`, which
is true in rows that stand for a deleted key; their other columns are null. Field metadata `lance:field_id` is
the id of the field, nested ones too. Columns are found by that id, otherwise by name; missing ones are null.
(MemWAL, WAL entry.)

Positions are consecutive. Replay goes from one to the next until the first that is missing, so a reader sees
a prefix of what was written. An entry behind a missing one is a loss, and it is reported.

The file of an entry is created only if it is absent.
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
from spark_lance.io.store import Store
from spark_lance.memwal.names import ShardPaths, numbers_in
from spark_lance.memwal.shard_manifest import load_shard
from spark_lance.table.writing.align import Aligner

TOMBSTONE = "_tombstone"
EPOCH, GENERATION, SENTINEL = b"writer_epoch", b"generation", b"fence_sentinel"
FIELD_ID = b"lance:field_id"
_PARALLEL_READS = 16


@dataclass(frozen=True)
class WalEntry:
    """An entry that was read.

    Attributes:
        position: its place in the log, from 1 on.
        epoch: of its writer.
        generation: of the SSTable that its rows will be in; None: the shard's current one.
        rows: with the columns of `log_schema`; None of a sentinel.
        metadata: all of the entry's schema.
        nbytes: of the entry.
    """

    position: int
    epoch: int
    generation: int | None
    rows: pa.Table | None
    metadata: Mapping[bytes, bytes]
    nbytes: int


def wal_fields(schema: Schema) -> tuple[Field, ...]:
    """Return the fields of a table as rows that are not in it yet have them: all but the key may be null."""
    return tuple(field if field.key_position is not None else _nullable(field) for field in schema.fields)


def _nullable(field: Field) -> Field:
    return Field(field.id, field.name, field.logical_type, True, field.children, field.metadata)


def log_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of logged rows: the columns of a table, and the mark of deleted keys."""
    fields = [_with_ids(field.arrow_field(), field) for field in wal_fields(schema)]
    return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)])


def _with_ids(arrow: pa.Field, field: Field) -> pa.Field:
    """Return an Arrow field that carries the ids of the field and of those inside it."""
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
        rows: with the columns of `schema`.
        schema: see `log_schema`.
        epoch, generation: of the writer, and of its rows.
        metadata: further pairs, which other readers pass over.
    """
    own: dict[bytes | str, bytes | str] = {EPOCH: str(epoch), GENERATION: str(generation)}
    own.update(metadata or {})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.with_metadata(own)) as writer:
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else rows:
            writer.write_batch(batch.replace_schema_metadata(own))
    return sink.getvalue()


def pack_sentinel(epoch: int, mark: str) -> bytes:
    """Return the bytes of the mark with which a new writer stops the one before it.

    Args:
        epoch: of the new writer.
        mark: text that no other writer has, so that it knows its own sentinel.
    """
    metadata = {EPOCH: str(epoch), SENTINEL: "true", b"spark_lance.mark": mark}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([], metadata)):
        pass
    return bytes(sink.getvalue())


def read_entry(store: Store, paths: ShardPaths, position: int, schema: Schema) -> WalEntry:
    """Read an entry.

    Args:
        schema: of the table, to which the rows are fitted.

    Raises:
        FileNotFoundError: there is none at this position.
        WalEntryError: it is cut off, damaged, or does not say who wrote it.
    """
    path = paths.entry(position)
    data = store.read(path)
    try:
        check_arrow_stream(data)
        with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
            rows = reader.read_all()
        # Arrow takes the end of the bytes for the end of a stream; a whole one says so itself.
        if not data.endswith(b"\xff\xff\xff\xff\0\0\0\0"):
            raise WalEntryError("the entry is cut off")
        rows.validate(full=True)
        metadata = dict(rows.schema.metadata or {})
        epoch = int(metadata[EPOCH])
        generation = int(metadata[GENERATION]) if GENERATION in metadata else None
    except FormatError as error:
        raise _damaged(error, path, position) from None
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _damaged(error, path, position) from error
    except (KeyError, ValueError) as error:
        raise _damaged(f"it has no {error} in its metadata", path, position) from error
    if metadata.get(SENTINEL) == b"true":
        return WalEntry(position, epoch, generation, None, metadata, len(data))
    try:
        result = fit_rows(rows, schema)
    except (pa.ArrowException, WalEntryError) as error:
        raise _damaged(error, path, position) from error
    return WalEntry(position, epoch, generation, result, metadata, len(data))


def _damaged(why: object, path: str, position: int) -> WalEntryError:
    return WalEntryError(
        f"entry {position} of the log cannot be read, so the rows of that write are lost: {why}. "
        "accept_loss=True goes on without them",
        path=path,
    )


def fit_rows(rows: pa.Table, schema: Schema) -> pa.Table:
    """Return logged rows with the columns that a table has now, and the mark of deleted keys.

    Raises:
        WalEntryError: a value does not fit, or a column of the key is missing.
    """
    fields, arrays = [], []
    by_id = {_field_id(field): place for place, field in enumerate(rows.schema)}
    for field in wal_fields(schema):
        arrow = field.arrow_field()
        place = by_id.get(field.id)
        if place is None:
            place = rows.schema.get_field_index(field.name)
            if place >= 0 and _field_id(rows.schema.field(place)) not in (None, field.id):
                place = -1  # another column, which had the name before
        if place < 0:
            if not arrow.nullable:
                raise WalEntryError(f"the key column {field.name!r} is missing")
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
    """Return values as a type that differs in names, nullability and metadata of inner fields at most.

    Fields inside of structs are found as columns are; all else is a cast.
    """
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
    """The end of a shard's log, which is in no SSTable.

    Attributes:
        entries: in order, sentinels too.
        next_position: the first position that nobody has written.
        lost: whether entries were missing or damaged, and were passed over.
    """

    entries: tuple[WalEntry, ...]
    next_position: int
    lost: bool = False


def read_tail(
    store: Store, paths: ShardPaths, after: int, schema: Schema, *, accept_loss: bool = False
) -> Tail:
    """Read all entries behind a position.

    Args:
        after: the last position whose rows are in SSTables.
        schema: of the table.
        accept_loss: pass over entries that are missing or damaged, where others come behind them.

    Raises:
        WalHoleError: an entry is missing, and there are later ones.
        WalEntryError: an entry cannot be read.
        TailMovedError: entries were collected meanwhile: begin anew with the newest manifest.
    """

    def read(position: int) -> WalEntry | None:
        try:
            return read_entry(store, paths, position, schema)
        except FileNotFoundError:
            _check_collected(store, paths, position)
            return None
        except WalEntryError:
            if accept_loss:
                return None
            raise

    lost = False
    listed = [number for number in numbers_in(list(store.list(paths.entries))) if number > after]
    missing = _first_missing(listed, after + 1)
    while missing <= (listed[-1] if listed else 0):
        # A listing is no snapshot: what it did not show may have come while it was made.
        if not store.exists(paths.entry(missing)):
            _check_collected(store, paths, missing)
            if not accept_loss:
                raise _hole(paths, missing, listed)
            lost = True
            break
        listed = sorted({*listed, missing})
        missing = _first_missing(listed, missing)
    with ThreadPoolExecutor(1 if store.is_local else _PARALLEL_READS) as pool:
        entries = [entry for entry in pool.map(read, listed) if entry is not None]
    lost |= len(entries) < len(listed)
    position = (listed[-1] if listed else after) + 1
    while (entry := read(position)) is not None:
        entries.append(entry)
        position += 1
    return Tail(tuple(entries), position, lost)


def _first_missing(listed: Sequence[int], position: int) -> int:
    there = set(listed)
    while position in there:
        position += 1
    return position


def _hole(paths: ShardPaths, missing: int, listed: Sequence[int]) -> WalHoleError:
    later = [number for number in listed if number > missing]
    return WalHoleError(
        f"entry {missing} of the log is missing, and {len(later)} later ones are there, up to {later[-1]}: "
        "the rows of what is missing are lost. accept_loss=True goes on without them",
        path=paths.entries,
    )


class TailMovedError(Exception):
    """Entries to read have become an SSTable and were collected: the read starts again."""


def _check_collected(store: Store, paths: ShardPaths, position: int) -> None:
    newest = load_shard(store, paths)
    if newest is not None and newest.replay_after_wal_entry_position >= position:
        raise TailMovedError(f"entry {position} of shard {paths.shard} is in an SSTable meanwhile")


def rows_of(entries: Sequence[WalEntry], schema: Schema) -> pa.Table:
    """Return the rows of entries as one table, oldest first, each column in one chunk if it can be."""
    tables = [entry.rows for entry in entries if entry.rows is not None]
    if not tables:
        fields = [field.arrow_field() for field in wal_fields(schema)]
        return pa.schema([*fields, pa.field(TOMBSTONE, pa.bool_(), nullable=False)]).empty_table()
    table = pa.concat_tables(tables)
    columns = [pa.chunked_array(join(column.chunks), column.type) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def by_generation(entries: Sequence[WalEntry], current: int) -> Iterator[tuple[int, list[WalEntry]]]:
    """Yield generations and their entries, oldest first; entries of older ones than the current are
    flushed."""
    pending: list[WalEntry] = []
    generation = current
    for entry in entries:
        its = current if entry.generation is None else entry.generation
        if entry.rows is None or its < current:
            continue
        if its != generation and pending:
            yield generation, pending
            pending = []
        generation = its
        pending.append(entry)
    if pending:
        yield generation, pending


def entry_mark() -> str:
    """Return text that no other entry has."""
    return uuid.uuid4().hex


def plain_schema(schema: Schema) -> pa.Schema:
    """Return the schema of logged rows in memory: that of the log, without metadata of columns."""
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in log_schema(schema)])


def logged_rows(schema: Schema, reader: pa.RecordBatchReader) -> pa.Table:
    """Return rows as they are logged: all columns of the table in its order, and the mark of deletions.

    Columns that are missing and may be null are null.

    Raises:
        SchemaError: the rows do not fit the table, or a value must not be null.
    """
    aligner = Aligner(reader.schema, Schema(wal_fields(schema), schema.metadata))
    present = aligner.arrow_schema.names
    missing = [field.name for field in schema.fields if not field.nullable and field.name not in present]
    if missing:
        raise SchemaError(f"column {missing[0]!r} must not be null but is missing in the data")
    rows = pa.Table.from_batches([aligner.align(batch) for batch in reader], aligner.arrow_schema)
    for column in schema.fields:
        if not column.nullable and rows[column.name].null_count:
            raise SchemaError(f"column {column.name!r} must not be null, but a value of the data is")
    return _whole(schema, rows, dead=False)


def check_rows(rows: pa.Table) -> None:
    """Check that all text is UTF-8: a log that holds other bytes could not be read.

    Raises:
        SchemaError: a text is not; the message names the field, the row and the byte.
    """
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        first = 0
        for chunk in column.chunks:
            check_texts(chunk, name, first)
            first += len(chunk)


def logged_keys(schema: Schema, reader: pa.RecordBatchReader) -> pa.Table:
    """Return keys as the deletions of their rows are logged; other columns are passed over.

    Raises:
        OptionError: the table has no primary key.
        SchemaError: a column of the key is missing, or null.
    """
    own = Schema(tuple(field for field in schema.fields if field.key_position is not None))
    if not own.fields:
        raise OptionError("rows are deleted by their primary key, and the table declares none")
    names = [field.name for field in own.fields]
    absent = [name for name in names if name not in reader.schema.names]
    if absent:
        raise SchemaError(f"the keys lack the column {absent[0]!r}")
    table = reader.read_all().select(names)
    aligner = Aligner(table.schema, own)
    batches = [aligner.align(batch) for batch in table.to_batches()]
    return _whole(schema, pa.Table.from_batches(batches, aligner.arrow_schema), dead=True)


def _whole(schema: Schema, rows: pa.Table, *, dead: bool) -> pa.Table:
    """Return rows with all columns of the log, each in one chunk; columns that are missing are null."""
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
