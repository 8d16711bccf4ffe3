"""Structure-aware mutations: change one thing in a valid object, so that the rest of it still parses.

Each function takes the bytes of an object and a random generator, and returns changed bytes. The same seed
gives the same bytes.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import pyarrow as pa
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from pyroaring import BitMap, BitMap64

from spark_lance.errors import LanceError
from spark_lance.file.base.metadata import ARRAY_ENCODING_URL, COLUMN_ENCODING_URL, PAGE_LAYOUT_URL
from spark_lance.file.base.schema import Schema
from spark_lance.file.reader import FileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.memory import MemoryStore
from spark_lance.proto import (
    encodings20_pb2,
    encodings21_pb2,
    file2_pb2,
    file_pb2,
    index_pb2,
    rowids_pb2,
    table_pb2,
    transaction_pb2,
)
from spark_lance.table.format.manifest import pack_manifest
from tests.file.damage import FileParts

__all__ = [
    "Mutation",
    "mutate_any_message",
    "mutate_arrow",
    "mutate_bytes",
    "mutate_index_file",
    "mutate_json_object",
    "mutate_lance_file",
    "mutate_manifest",
    "mutate_message",
    "mutate_transaction",
]

Mutation = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, 2, 5, 127, 128, 255, 4096, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**53)
LARGE_NUMBERS = (2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2, -1, -2, -(2**31), -(2**63))
TEXTS = (
    "",
    "..",
    "../../x",
    "/etc/passwd",
    "a/../b",
    "\0",
    "a\nb",
    "x" * 5000,
    "ü\u202e",
    "fixed_size_list:float:2147483647",
    "fixed_size_list:fixed_size_list:float:65536:65536",
    "fixed_size_list:fixed_size_binary:2147483647:2147483647",
    "fixed_size_binary:2147483647",
    "fixed_size_binary:0",
    "decimal:128:99:99",
    "decimal:256:0:-3",
    "timestamp:us:Nowhere/City",
    "timestamp:us:-",
    "time:x",
    "dict:string:int8:false",
    "dict:dict:string:int8:false:int64:true",
    "list",
    "list.struct",
    "struct",
    "map",
    "null",
    "json",
    "18446744073709551615",
    "-1",
    "1e400",
    "NaN",
    "true",
    "{}",
    "[" * 3000,
    '{"a":' * 3000,
)


@cache
def bitmaps() -> tuple[bytes, ...]:
    """Return Roaring bitmaps of few bytes that hold many rows, and others at the ends of their range."""
    every = BitMap()
    every.add_range(0, 2**32)
    every.run_optimize()
    many = BitMap()
    many.add_range(0, 2**28)
    many.run_optimize()
    wide = BitMap64([0, 2**32, 2**63, 2**64 - 1])
    few = [BitMap(), BitMap([0]), BitMap([2**32 - 1]), BitMap([0, 1, 2, 3]), BitMap(range(0, 70000, 7))]
    return (every.serialize(), many.serialize(), wide.serialize(), *(bitmap.serialize() for bitmap in few))


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few bits, bytes or numbers changed, or with a part cut, repeated or moved."""
    if not data:
        return rng.randbytes(rng.randrange(1, 20))
    copy = bytearray(data)
    position = rng.randrange(len(copy))
    kind = rng.randrange(9)
    if kind == 0:
        copy[position] ^= 1 << rng.randrange(8)
    elif kind == 1:
        for _ in range(rng.randrange(1, 8)):
            copy[rng.randrange(len(copy))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 2:
        width = rng.choice((2, 4, 8))
        number = rng.choice((*NUMBERS, *LARGE_NUMBERS)) % (1 << 8 * width)
        copy[position : position + width] = number.to_bytes(width, "little")
    elif kind == 3:
        del copy[position:]
    elif kind == 4:
        del copy[position : position + rng.randrange(1, 64)]
    elif kind == 5:
        part = copy[position : position + rng.randrange(1, 64)]
        copy[position:position] = part * rng.choice((1, 2, 100))
    elif kind == 6:
        other = rng.randrange(len(copy))
        copy[position : position + 8], copy[other : other + 8] = (
            copy[other : other + 8],
            copy[position : position + 8],
        )
    elif kind == 7:
        copy[position:position] = rng.randbytes(rng.randrange(1, 16))
    else:
        # Most descriptions are at the end of an object.
        tail = max(0, len(copy) - rng.choice((16, 40, 64, 256)))
        place = rng.randrange(tail, len(copy))
        copy[place] = rng.randrange(256)
    return bytes(copy)


# Bytes of messages that hold a message or another structure themselves, by the full name of their field.
_INSIDE: dict[str, Callable[[], Message]] = {
    "inline_row_ids": rowids_pb2.RowIdSequence,
    "inline_last_updated_at_versions": rowids_pb2.RowDatasetVersionSequence,
    "inline_created_at_versions": rowids_pb2.RowDatasetVersionSequence,
}
_PACKED: dict[str, Callable[[], Message]] = {
    ARRAY_ENCODING_URL: encodings20_pb2.ArrayEncoding,
    PAGE_LAYOUT_URL: encodings21_pb2.PageLayout,
    COLUMN_ENCODING_URL: encodings20_pb2.ColumnEncoding,
}


@cache
def _kinds_by_name() -> dict[str, Callable[[], Message]]:
    modules = (index_pb2, table_pb2, transaction_pb2)
    return {
        message.DESCRIPTOR.full_name: message
        for module in modules
        for message in vars(module).values()
        if isinstance(message, type) and issubclass(message, Message)
    }


def _messages(message: Message) -> Iterator[Message]:
    """Yield a message and those inside it; what maps and bytes hold is left out."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for inner in value if _is_repeated(field) else [value]:
            yield from _messages(inner)


def _is_repeated(field: Any) -> bool:
    # Releases of protobuf before 6.31 have the label only, and those from 7 on the property only.
    known: bool | None = getattr(field, "is_repeated", None)
    return bool(field.label == FieldDescriptor.LABEL_REPEATED if known is None else known)


def mutate_message(message: Message, rng: random.Random) -> None:
    """Change a few fields of a message in place."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        sites: list[tuple[Message, Any]] = [
            (inner, field) for inner in _messages(message) for field, _ in inner.ListFields()
        ]
        if not sites or rng.random() < 0.15:
            inner = rng.choice(list(_messages(message)))
            sites = [(inner, field) for field in inner.DESCRIPTOR.fields]
            if not sites:
                continue
        inner, field = rng.choice(sites)
        try:
            _mutate_field(inner, field, rng)
        except (ValueError, TypeError, OverflowError):
            # The field cannot hold this value, so the message stays as it is.
            continue


def _mutate_field(message: Any, field: FieldDescriptor, rng: random.Random) -> None:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _mutate_map(getattr(message, name), rng)
    elif _is_repeated(field):
        _mutate_repeated(message, field, rng)
    elif field.message_type is not None:
        if rng.random() < 0.5:
            message.ClearField(name)
        else:
            getattr(message, name).SetInParent()
            mutate_message(getattr(message, name), rng)
    elif rng.random() < 0.1:
        message.ClearField(name)
    else:
        setattr(message, name, _value(message, field, getattr(message, name), rng))


def _mutate_map(pairs: Any, rng: random.Random) -> None:
    key = rng.choice(sorted(pairs)) if pairs and rng.random() < 0.8 else rng.choice(TEXTS)
    value = pairs.get(key, "")
    if isinstance(value, Message):
        mutate_message(value, rng)
    elif isinstance(value, bytes):
        pairs[key] = mutate_bytes(value, rng)
    elif isinstance(value, str):
        pairs[key] = _text(value, rng)
    elif rng.random() < 0.5:
        del pairs[key]


def _mutate_repeated(message: Any, field: FieldDescriptor, rng: random.Random) -> None:
    items = getattr(message, field.name)
    kind = rng.randrange(5)
    position = rng.randrange(len(items)) if items else 0
    if field.message_type is not None:
        if not items:
            items.add()
        elif kind == 0:
            del items[position]
        elif kind == 1:
            items.add().CopyFrom(items[position])
        elif kind == 2:
            copies = [type(items[0])() for _ in items]
            for copy, item in zip(copies, items, strict=True):
                copy.CopyFrom(item)
            rng.shuffle(copies)
            del items[:]
            items.extend(copies)
        else:
            mutate_message(items[position], rng)
        return
    values = list(items)
    if not values or kind == 0:
        values.insert(position, _value(message, field, values[position] if values else _zero(field), rng))
    elif kind == 1:
        del values[position]
    elif kind == 2:
        rng.shuffle(values)
    elif kind == 3:
        values *= rng.choice((2, 3))
    else:
        values[position] = _value(message, field, values[position], rng)
    items[:] = values


def _zero(field: FieldDescriptor) -> Any:
    kinds = {FieldDescriptor.CPPTYPE_STRING: b"" if field.type == FieldDescriptor.TYPE_BYTES else ""}
    return kinds.get(field.cpp_type, 0)


def _value(message: Message, field: FieldDescriptor, value: Any, rng: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        near = value + rng.choice((-1, 1, -2, 2, 100))
        return rng.choice((near, value * 2, rng.choice(NUMBERS), rng.choice(LARGE_NUMBERS)))
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, 1e308, float("inf"), float("nan"), 2**33))
    if isinstance(value, str):
        return _text(value, rng)
    return _inner_bytes(message, field.name, value, rng)


def _text(value: str, rng: random.Random) -> str:
    kind = rng.randrange(4)
    if kind == 0 or not value:
        return rng.choice(TEXTS)
    if kind == 1:
        return mutate_json(value, rng)
    position = rng.randrange(len(value))
    middle = rng.choice(("", "0", "9999999999", ":", ".", "/", "\0", "é", value))
    return value[:position] + middle + value[position + (kind == 2) :]


def _inner_bytes(message: Message, name: str, value: bytes, rng: random.Random) -> bytes:
    """Change bytes by what they hold: a message, a Roaring bitmap, or anything."""
    kind = _INSIDE.get(name)
    if isinstance(message, AnyMessage) and name == "value":
        kind = _PACKED.get(message.type_url) or _kinds_by_name().get(message.type_url.rpartition("/")[2])
    if name == "encoding":
        kind = AnyMessage
    if kind is not None and rng.random() < 0.85:
        inner = kind()
        try:
            inner.ParseFromString(value)
        except DecodeError:
            return mutate_bytes(value, rng)
        mutate_message(inner, rng)
        return inner.SerializeToString()
    if "bitmap" in name or "addrs" in name or "offsets" in name or rng.random() < 0.05:
        return rng.choice(bitmaps()) if rng.random() < 0.6 else mutate_bytes(value, rng)
    return mutate_bytes(value, rng)


def mutate_json(text: str, rng: random.Random) -> str:
    """Return text with one value of its JSON changed, or the text itself if it is no JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return mutate_bytes(text.encode(), rng).decode("utf-8", "replace")
    holder = {"": value}
    sites: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
        for key in keys:
            sites.append((node, key))
            walk(node[key])

    walk(holder)
    node, key = rng.choice(sites)
    choices: tuple[Any, ...] = (*NUMBERS, *LARGE_NUMBERS, *TEXTS, None, [], {}, True, -0.5, [[]], 10**30)
    if rng.random() < 0.2 and isinstance(node, dict) and node is not holder:
        del node[key]
    else:
        node[key] = rng.choice(choices)
    return json.dumps(holder[""])


def mutate_any_message(data: bytes, rng: random.Random, *, kind: Callable[[], Message]) -> bytes:
    """Return the bytes of a message of a kind with fields or bytes changed."""
    if rng.random() < 0.2:
        return mutate_bytes(data, rng)
    message = kind()
    message.ParseFromString(data)
    mutate_message(message, rng)
    return message.SerializeToString()


mutate_transaction: Mutation = partial(mutate_any_message, kind=transaction_pb2.Transaction)


def mutate_manifest(data: bytes, rng: random.Random) -> bytes:
    """Return a manifest file with one of its sections or its framing changed."""
    if rng.random() < 0.1:
        return mutate_bytes(data, rng)
    (position,) = struct.unpack_from("<q", data, len(data) - 16)

    def section(offset: int) -> bytes:
        (length,) = struct.unpack_from("<I", data, offset)
        return data[offset + 4 : offset + 4 + length]

    message = table_pb2.Manifest.FromString(section(position))
    indices, transaction = table_pb2.IndexSection(), transaction_pb2.Transaction()
    if message.HasField("index_section"):
        indices.ParseFromString(section(message.index_section))
    if message.HasField("transaction_section"):
        transaction.ParseFromString(section(message.transaction_section))
    part = rng.choices((message, indices, transaction), (6, 4 if indices.indices else 0, 2))[0]
    mutate_message(part, rng)
    offsets = (message.index_section, message.transaction_section)
    out = bytearray(pack_manifest(message, indices.SerializeToString(), transaction.SerializeToString()))
    if rng.random() < 0.05 and len(out) < 1 << 16:
        # Offsets that point elsewhere: the message keeps its size only by chance, so build it by hand.
        message.index_section, message.transaction_section = (
            rng.choice((*NUMBERS, *offsets)),
            rng.choice(offsets),
        )
        body = message.SerializeToString()
        out = bytearray(struct.pack("<I", len(body)) + body + struct.pack("<qHH4s", 0, 0, 2, b"LANC"))
    return bytes(out)


def mutate_lance_file(data: bytes, rng: random.Random) -> bytes:
    """Return a data file (2.0 or newer) with a field of its metadata, or bytes of its pages, changed."""
    if rng.random() < 0.4 or struct.unpack("<HH", data[-8:-4]) <= (0, 2):
        return mutate_bytes(data, rng)
    parts = FileParts.parse(data)
    number = rng.randrange(len(parts.columns) + 1)
    block = parts.descriptor if number == 0 else parts.columns[number - 1]
    kind = file_pb2.FileDescriptor if number == 0 else file2_pb2.ColumnMetadata
    changed = mutate_any_message(block, rng, kind=kind)
    if number == 0:
        return parts.rebuilt(changed, parts.columns)
    columns = [*parts.columns[: number - 1], changed, *parts.columns[number:]]
    return parts.rebuilt(parts.descriptor, columns)


def mutate_index_file(data: bytes, rng: random.Random) -> bytes:
    """Return an index file with its content changed: cells, rows, notes or buffers, in valid pages."""
    if rng.random() < 0.35:
        return mutate_lance_file(data, rng)
    store = MemoryStore()
    store.put("/mutation/source", data)
    reader = FileReader(store, "/mutation/source")
    table = reader.read()
    notes = dict(reader.schema.metadata)
    buffers = [bytes(reader.global_buffer(i)) for i in range(1, reader.num_global_buffers)]
    choices = ["cells"] * 4 * bool(table.num_columns and table.num_rows)
    choices += ["rows"] + ["notes"] * 2 * bool(notes) + ["buffers"] * 2 * bool(buffers)
    choice = rng.choice(choices)
    if choice == "cells":
        table = _mutate_cells(table, rng)
    elif choice == "rows":
        table = _mutate_rows(table, rng)
    elif choice == "notes":
        key = rng.choice(sorted(notes))
        notes[key] = mutate_json(notes[key], rng)
    else:
        place = rng.randrange(len(buffers))
        known = [index_pb2.IVF, index_pb2.Tensor]
        buffers[place] = _mutate_buffer(buffers[place], rng, known)
    try:
        with FileWriter(
            store, "/mutation/target", Schema.from_arrow(table.schema, reserved=True), reader.version
        ) as writer:
            for batch in table.to_batches():
                writer.write(batch)
            for buffer in buffers:
                writer.add_global_buffer(buffer)
            writer.add_metadata(notes)
            writer.finish()
    except LanceError:
        # Our writer refuses these rows; the bytes get another mutation.
        return mutate_lance_file(data, rng)
    return store.read("/mutation/target")


# Items of a list after mutations, so that these need little memory themselves.
_MOST_ITEMS = 1_000


def _mutate_buffer(data: bytes, rng: random.Random, kinds: Sequence[Callable[[], Message]]) -> bytes:
    if rng.random() < 0.2:
        return rng.choice(bitmaps())
    for kind in kinds:
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError:
            continue
        mutate_message(message, rng)
        return message.SerializeToString()
    return mutate_bytes(data, rng)


def _mutate_rows(table: pa.Table, rng: random.Random) -> pa.Table:
    rows = list(range(table.num_rows))
    kind = rng.randrange(4)
    if kind == 0:
        rows = rows[: rng.randrange(len(rows) + 1)]
    elif kind == 1:
        rng.shuffle(rows)
    elif kind == 2:
        rows = rows * 2
    elif rows:
        del rows[rng.randrange(len(rows))]
    return table.take(pa.array(rows, pa.int64()))


def _mutate_cells(table: pa.Table, rng: random.Random) -> pa.Table:
    number = rng.randrange(table.num_columns)
    field, values = table.schema.field(number), table.column(number).to_pylist()
    for _ in range(rng.choice((1, 1, 3, min(len(values), 8)))):
        row = rng.randrange(len(values))
        values[row] = _cell(values[row], field.type, rng)
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return _mutate_rows(table, rng)
    if column.null_count and not field.nullable:
        field = field.with_nullable(True)
    return table.set_column(number, field, column)


def _cell(value: Any, kind: pa.DataType, rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return None
    if pa.types.is_boolean(kind):
        return not value
    if pa.types.is_integer(kind):
        width = kind.bit_width
        low, high = (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        if pa.types.is_unsigned_integer(kind):
            low, high = 0, 2**width - 1
        near = (value or 0) + rng.choice((-1, 1, 1000, 1 << 32))
        return min(max(rng.choice((near, low, high, high - 1, high // 2, 0, 1, 2**16, 2**31)), low), high)
    if pa.types.is_floating(kind):
        return rng.choice((float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e30, -1e30))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text(value or "", rng)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _rows_blob(value or b"", rng)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = list(value or [])
        choice = rng.randrange(4)
        if choice == 0 or not items:
            repeated = items * rng.choice((0, 2, 50))  # perhaps of one row again and again
            return repeated[:_MOST_ITEMS] or [_cell(None, kind.value_type, rng)]
        if choice == 1:
            del items[rng.randrange(len(items))]
            return items
        place = rng.randrange(len(items))
        items[place] = _cell(items[place], kind.value_type, rng)
        return items
    if pa.types.is_fixed_size_list(kind):
        items = list(value or [None] * kind.list_size)
        if items:
            place = rng.randrange(len(items))
            items[place] = _cell(items[place], kind.value_type, rng)
        return items
    if pa.types.is_struct(kind):
        changed = dict(value or {field.name: None for field in kind})
        field = kind.field(rng.randrange(kind.num_fields))
        changed[field.name] = _cell(changed[field.name], field.type, rng)
        return changed
    return value


def _rows_blob(value: bytes, rng: random.Random) -> bytes:
    """Change bytes of a cell: stored sets of rows, bitmaps or posting lists."""
    kind = rng.randrange(4)
    if kind == 0:
        return mutate_bytes(value, rng)
    if kind == 1:
        return rng.choice(bitmaps())
    if kind == 2:
        bitmap = rng.choice(bitmaps())
        numbers = rng.choice(([0], [0, 1, 2], [2**32 - 1], list(range(50)), [7, 7]))
        body = b"".join(struct.pack("<II", number, len(bitmap)) + bitmap for number in numbers)
        return struct.pack("<I", len(numbers)) + body
    return struct.pack("<I", rng.choice((2**32 - 1, 1, 1000))) + b"\0" * rng.choice((0, 8, 8000))


def mutate_arrow(data: bytes, rng: random.Random) -> bytes:
    """Return an Arrow file or stream with cells, types, metadata, compression or raw bytes changed."""
    if rng.random() < 0.45:
        return mutate_bytes(data, rng)
    is_file = data.startswith(b"ARROW1")
    opened = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(pa.BufferReader(data))
    table = opened.read_all()
    metadata = dict(table.schema.metadata or {})
    choice = rng.randrange(5)
    if choice == 0 and metadata:
        key = rng.choice(sorted(metadata))
        text = metadata[key].decode("utf-8", "replace")
        metadata[key] = rng.choice(
            (mutate_json(text, rng), rng.choice(TEXTS), str(rng.choice(NUMBERS)))
        ).encode()
    elif choice == 1 and table.num_rows:
        table = _mutate_cells(table, rng)
    elif choice == 2:
        table = _mutate_rows(table, rng)
    elif choice == 3 and table.num_columns:
        table = _mutate_types(table, rng)
    else:
        table = pa.concat_tables([table] * rng.choice((2, 3)))
    table = table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=rng.choice((None, "zstd", "lz4")))
    make = pa.ipc.new_file if is_file else pa.ipc.new_stream
    with make(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks() if rng.random() < 0.7 else table)
    out = sink.getvalue().to_pybytes()
    return mutate_bytes(out, rng) if rng.random() < 0.2 else out


def _mutate_types(table: pa.Table, rng: random.Random) -> pa.Table:
    """Put a column of another type, of many rows in few bytes, or none at all, in the place of one."""
    number, rows = rng.randrange(table.num_columns), table.num_rows
    field = table.schema.field(number)
    columns: list[Callable[[], pa.Array]] = [
        lambda: pa.nulls(rows),
        lambda: pa.array(["x"] * rows),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([None] * rows, pa.list_(pa.int8())),
        lambda: pa.array([None] * rows, pa.struct([("a", pa.int8())])),
        lambda: pa.array(["x"] * rows).dictionary_encode(),
        lambda: pa.array([0.5] * rows),
        lambda: pa.array([b"\xc3" * 3] * rows).view(pa.string()) if rows else pa.array([], pa.string()),
    ]
    column = rng.choice(columns)()
    if rng.random() < 0.2:
        return table.remove_column(number)
    name = field.name if rng.random() < 0.8 else rng.choice(table.schema.names)
    return table.set_column(number, pa.field(name, column.type, True, field.metadata), column)


def mutate_json_object(data: bytes, rng: random.Random) -> bytes:
    """Return a JSON object with a value or bytes changed."""
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    return mutate_json(data.decode(), rng).encode()
