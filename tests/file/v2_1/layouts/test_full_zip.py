"""Full-zip pages of every width and nesting, written here and by pylance, and read by both."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_lance.errors import FormatError
from spark_lance.file.base.pages import RowReader
from spark_lance.file.reader import FileReader, take_field
from spark_lance.file.v2_1.layouts.full_zip import decode
from spark_lance.file.v2_1.layouts.page_bytes import PageBytes
from spark_lance.io.store import open_store
from spark_lance.proto import encodings21_pb2 as pb
from tests.file.v2_1.by_hand import RESOLVER, flat, variable
from tests.file.v2_1.pylance_file import layouts, open_file, pylance_file
from tests.file.v2_1.pylance_table import write_file
from tests.file.v2_1.test_write_pylance import check, compare

VERSIONS = ("2.1", "2.2")
FULL_ZIP = {"lance-encoding:structural-encoding": "fullzip"}
Rng = np.random.Generator

# Type -> a random value of the type.
ITEMS: dict[pa.DataType, Callable[[Rng], Any]] = {
    pa.int8(): lambda rng: int(rng.integers(-128, 128)),
    pa.uint16(): lambda rng: int(rng.integers(0, 1 << 16)),
    pa.int32(): lambda rng: int(rng.integers(-(1 << 31), 1 << 31)),
    pa.float64(): lambda rng: float(rng.standard_normal()),
    pa.date32(): lambda rng: date.fromordinal(int(rng.integers(1, 700_000))),
    pa.decimal128(20, 3): lambda rng: Decimal(int(rng.integers(-(10**15), 10**15))).scaleb(-3),
    pa.binary(3): lambda rng: rng.bytes(3),
    pa.binary(300): lambda rng: rng.bytes(300),
    pa.list_(pa.float32(), 40): lambda rng: rng.random(40, np.float32).tolist(),
    pa.list_(pa.int16(), 3): lambda rng: rng.integers(0, 99, 3).tolist(),
    pa.string(): lambda rng: "é" * int(rng.integers(0, 40)),
    pa.large_binary(): lambda rng: rng.bytes(int(rng.integers(0, 40))),
}
SHAPES = ("required", "nullable", "list", "required list", "list of lists", "struct", "list of structs")


def rows_of(rng: Rng, kind: pa.DataType, shape: str, count: int) -> tuple[pa.Field, list[Any]]:
    """Return a field of a nesting around a type, and its values."""
    make = ITEMS[kind]

    def some(value: Callable[[], Any], nullable: bool = True) -> Any:
        return None if nullable and rng.random() < 0.2 else value()

    def a_list(value: Callable[[], Any]) -> list[Any]:
        return [value() for _ in range(int(rng.integers(0, 4)) if rng.random() < 0.8 else 12)]

    def item() -> Any:
        return some(lambda: make(rng))

    leaf = pa.field("item", kind, metadata=FULL_ZIP)
    point = pa.struct([leaf.with_name("x")])
    fields: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
        "required": (kind, lambda: make(rng)),
        "nullable": (kind, item),
        "list": (pa.list_(leaf), lambda: some(lambda: a_list(item))),
        "required list": (pa.list_(leaf.with_nullable(False)), lambda: a_list(lambda: make(rng))),
        "list of lists": (
            pa.list_(pa.list_(leaf)),
            lambda: some(lambda: a_list(lambda: some(lambda: a_list(item)))),
        ),
        "struct": (point, lambda: some(lambda: {"x": item()})),
        "list of structs": (
            pa.list_(point),
            lambda: some(lambda: a_list(lambda: some(lambda: {"x": item()}))),
        ),
    }
    arrow, value = fields[shape]
    required = shape.startswith("required")
    return pa.field("c", arrow, not required, metadata=FULL_ZIP), [value() for _ in range(count)]


def table_of(seed: int, count: int) -> pa.Table:
    """Return a table with columns of each nesting around two of the types."""
    rng = np.random.default_rng(seed)
    kinds = list(ITEMS)
    fields, columns = [], []
    for shape in SHAPES:
        for number in rng.choice(len(kinds), 2, replace=False):
            kind = kinds[number]
            field, values = rows_of(rng, kind, shape, count)
            fields.append(field.with_name(f"{kind} {shape}".replace(".", "_")))
            columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def check_reads(reader: FileReader, table: pa.Table, seed: int) -> None:
    """Compare all rows, a range of rows and some rows with a table."""
    rng = np.random.default_rng(seed)
    start, stop = sorted(rng.integers(0, table.num_rows + 1, 2).tolist())
    picked = np.sort(rng.choice(table.num_rows, min(9, table.num_rows), replace=False)).astype(np.int64)
    compare(reader.read(reader.schema.fields), table)
    compare(reader.read(reader.schema.fields, start, stop), table.slice(start, stop - start))
    for field in reader.schema.fields:
        opened = reader.open_field(field)
        assert isinstance(opened, RowReader)
        values = take_field(opened, field, "", picked)
        assert values.to_pylist() == table[field.name].take(pa.array(picked)).to_pylist(), field.name


def count_full_zip(reader: FileReader) -> tuple[int, int]:
    """Return the number of full-zip pages, and of other pages except constant pages."""
    kinds = [
        layout.WhichOneof("layout")
        for column in set(reader.columns.values())
        for layout in layouts(reader, column)
    ]
    return kinds.count("full_zip_layout"), len(kinds) - kinds.count("full_zip_layout") - kinds.count(
        "constant_layout"
    )


SEEDS = st.integers(0, 1 << 32)


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=SEEDS, count=st.sampled_from([1, 7, 60]), page_bytes=st.sampled_from([500, 8 << 20]))
def test_pylance_reads_full_zip_pages(version: str, seed: int, count: int, page_bytes: int) -> None:
    check(table_of(seed, count), version, page_bytes=page_bytes)


@pytest.mark.parametrize("version", VERSIONS)
@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(seed=SEEDS, count=st.sampled_from([1, 7, 60]))
def test_full_zip_pages_of_both_writers_are_read(
    version: str, seed: int, count: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    table = table_of(seed, count)
    root = tmp_path_factory.mktemp("t")
    store, path = open_store(write_file(root, table, version).path)
    for reader in (FileReader(store, path), open_file(pylance_file(table, version, root / "theirs"))):
        full_zip, others = count_full_zip(reader)
        assert full_zip > 2 * others, "the tables test full-zip pages"
        check_reads(reader, table, seed)


ITEM, NULLABLE, LIST = pb.REPDEF_ALL_VALID_ITEM, pb.REPDEF_NULLABLE_ITEM, pb.REPDEF_NULL_AND_EMPTY_LIST
WORD = flat(32)
TEXT = variable(32)


def layout_of(layers: list[Any], items: int, **numbers: Any) -> pb.FullZipLayout:
    encoding = TEXT if "bits_per_offset" in numbers else WORD
    return pb.FullZipLayout(
        layers=layers, num_items=items, num_visible_items=items, value_compression=encoding, **numbers
    )


# Two nullable values, or two rows of lists: a control word of a byte, then the value.
FIXED = {"bits_per_value": 32, "bits_rep": 1, "bits_def": 2}
VARYING = {"bits_per_offset": 32, "bits_def": 1}
LISTED = {"bits_per_offset": 32, "bits_rep": 1, "bits_def": 2}
ROW = b"\x04\1\0\0\0"
CELL = b"\0\2\0\0\0ab"
ITEMS_OF_LIST = b"\x04\2\0\0\0ab"
DAMAGES: dict[str, tuple[pb.FullZipLayout, list[bytes], int]] = {
    "control words of 33 bits": (
        layout_of([ITEM], 2, bits_per_value=32, bits_rep=20, bits_def=13),
        [bytes(8)],
        2,
    ),
    "without a width": (layout_of([ITEM], 2), [bytes(8)], 2),
    "values of 12 bits": (layout_of([ITEM], 2, bits_per_value=12), [bytes(8)], 2),
    "3 values of 4 bytes in a buffer of 8": (layout_of([ITEM], 3, bits_per_value=32), [bytes(8)], 3),
    "lengths of 16 bits": (layout_of([NULLABLE], 1, bits_per_offset=16, bits_def=1), [CELL, b"\0\7"], 1),
    "buffer 1 is missing": (layout_of([NULLABLE], 1, **VARYING), [CELL], 1),
    "index of 3 bytes": (layout_of([NULLABLE], 1, **VARYING), [CELL, b"\0\7\7"], 1),
    "does not ascend": (layout_of([NULLABLE], 2, **VARYING), [CELL * 2, b"\0\x0e\7"], 2),
    "does not ascend from 0": (layout_of([NULLABLE], 1, **VARYING), [CELL, b"\1\7"], 1),
    "within the page": (layout_of([NULLABLE], 1, **VARYING), [CELL, b"\0\x08"], 1),
    "a full-zip row is cut": (layout_of([NULLABLE], 1, **VARYING), [CELL, b"\0\3"], 1),
    "do not fill their rows": (layout_of([NULLABLE], 1, **VARYING), [CELL[:-1], b"\0\6"], 1),
    "a page of 2 levels has 1": (layout_of([NULLABLE], 2, **VARYING), [CELL, b"\0\7"], 1),
    "a page of 3 levels has 2": (layout_of([ITEM, LIST], 3, **FIXED), [ROW * 2, b"\0\5\x0a"], 2),
    "a full-zip value leaves its page|leaves its row": (
        layout_of([ITEM, LIST], 1, **FIXED),
        [ROW[:-1], b"\0\4"],
        1,
    ),
    "row is cut short": (layout_of([ITEM, LIST], 2, **LISTED), [ITEMS_OF_LIST + b"\x04\2", b"\0\7\x09"], 2),
    "value leaves its page": (
        layout_of([ITEM, LIST], 1, **LISTED),
        [b"\x04\xff\xff\xff\xff" + b"ab", b"\0\7"],
        1,
    ),
    "level leaves its row": (
        layout_of([ITEM, LIST], 2, **LISTED),
        [ITEMS_OF_LIST * 2, b"\0\5\x0e"],
        2,
    ),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_damaged_pages_are_refused(problem: str) -> None:
    layout, buffers, rows = DAMAGES[problem]
    kind = pa.binary() if layout.HasField("bits_per_offset") else pa.int32()
    page = PageBytes([pa.py_buffer(each) for each in buffers], rows, kind)
    with pytest.raises(FormatError, match=problem):
        decode(layout, page, RESOLVER)


def test_huge_counts_of_values_without_bytes_are_refused() -> None:
    layout = layout_of([ITEM], (1 << 32) - 1, bits_per_value=0)
    with pytest.raises(FormatError):
        decode(layout, PageBytes([pa.py_buffer(bytes(8))], 3, pa.int32()), RESOLVER)
