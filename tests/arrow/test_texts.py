"""Text that is not UTF-8 is refused before it is stored, with its column and row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance.arrow.texts import check_texts
from spark_lance.datasets.dataset import dataset, write_dataset
from spark_lance.errors import SchemaError

BYTES = [b"good", None, "né".encode(), b"", b"caf\xe9", b"last"]


def texts(values: list[bytes | None], kind: pa.DataType | None = None) -> pa.Array:
    """Return text of these bytes, whatever they are."""
    kind = kind or pa.string()
    if pa.types.is_string_view(kind):
        raw = pa.array(values, pa.binary_view())
    else:
        raw = pa.array(values, pa.large_binary() if pa.types.is_large_string(kind) else pa.binary())
    return pa.Array.from_buffers(kind, len(raw), raw.buffers())


BAD = texts(BYTES)
CASES: dict[str, tuple[pa.Array, str, int]] = {
    "string": (BAD, "c", 4),
    "large_string": (texts(BYTES, pa.large_string()), "c", 4),
    "string_view": (texts(BYTES, pa.string_view()), "c", 4),
    "long string_view": (texts([b"x" * 40, b"y" * 40 + b"\xff"], pa.string_view()), "c", 1),
    "slice": (BAD.slice(2), "c", 2),
    "struct": (pa.StructArray.from_arrays([BAD], ["a"]), "c.a", 4),
    "list": (pa.ListArray.from_arrays(pa.array([0, 2, 2, 5, 6]), BAD), "c.item", 2),
    "large list": (pa.LargeListArray.from_arrays(pa.array([0, 2, 6], pa.int64()), BAD), "c.item", 1),
    "fixed-size list": (pa.FixedSizeListArray.from_arrays(BAD, 3), "c.item", 1),
    "sliced fixed-size list": (pa.FixedSizeListArray.from_arrays(BAD, 3).slice(1), "c.item", 0),
    "map value": (pa.MapArray.from_arrays([0, 2, 6], pa.array(list("abcdef")), BAD), "c.value", 1),
    "map key": (
        pa.MapArray.from_arrays([0, 1, 2], texts([b"k", b"\x80"]), pa.array([1, 2])), "c.key", 1
    ),
    "dictionary": (pa.DictionaryArray.from_arrays(pa.array([0, 3, 4, 0]), BAD), "c", 2),
    "dictionary in a list": (
        pa.ListArray.from_arrays([0, 1, 2], pa.DictionaryArray.from_arrays(pa.array([0, 4]), BAD)),
        "c.item",
        1,
    ),
    "list in a struct in a list": (
        pa.ListArray.from_arrays(
            [0, 1, 2],
            pa.StructArray.from_arrays([pa.ListArray.from_arrays([0, 2, 6], BAD)], ["b"]),
        ),
        "c.item.b.item",
        1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_check_names_field_row_and_byte(name: str) -> None:
    array, path, row = CASES[name]
    with pytest.raises(
        SchemaError, match=rf"column '{path}', row {row + 7} of .*not UTF-8 \(byte 0x"
    ) as error:
        check_texts(array, "c", 7)
    assert "CAST(x AS BINARY)" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", sorted(name for name in CASES if "string_view" not in name and "fixed-size" not in name)
)
def test_a_write_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    array, path, row = CASES[name]
    table = pa.table({"c": array})
    with pytest.raises(SchemaError, match=rf"column '{path}', row {row} of the rows to write"):
        write_dataset(table, tmp_path / "t")
    assert not list(tmp_path.rglob("*.lance"))


HIDDEN: dict[str, pa.Array] = {
    "null text": pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x01"), *pa.array([b"a", b"\xff"]).buffers()[1:]]
    ),
    "null struct": pa.StructArray.from_arrays([texts([b"a", b"\xff"])], ["a"], mask=pa.array([False, True])),
    "unused word": pa.DictionaryArray.from_arrays(pa.array([0, 0]), texts([b"a", b"\xff"])),
    "outside a slice": texts([b"a", b"\xff"]).slice(0, 1),
    "outside lists": pa.ListArray.from_arrays([0, 1], texts([b"a", b"\xff"])),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_bytes_that_no_reader_sees_are_no_reason(name: str) -> None:
    check_texts(HIDDEN[name], "c", 0)


@pytest.mark.parametrize("array", [texts([]), pa.array([1, 2]), pa.array([b"\xff"]), pa.nulls(3)])
def test_what_is_no_wrong_text(array: pa.Array) -> None:
    check_texts(array, "c", 0)


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_every_change_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "t"
    good = write_dataset(table(id=pa.array([1, 2]), s=pa.array(["a", "ä"])), path)
    bad = table(id=pa.array([2, 3]), s=texts([b"x", b"\xc3"]))
    with pytest.raises(SchemaError, match="column 's', row 1"):
        good.insert(bad)
    with pytest.raises(SchemaError, match="column 's'"):
        good.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(bad)
    with pytest.raises(SchemaError, match="column 'x'"):
        good.add_columns(pa.RecordBatchReader.from_batches(
            pa.schema([("x", pa.string())]), [pa.record_batch({"x": texts([b"x", b"\xc3"])})]
        ))  # fmt: skip
    assert dataset(path).version == 1
    assert lance.dataset(str(path)).to_table()["s"].to_pylist() == ["a", "ä"]


def test_rows_count_on_over_batches(tmp_path: Path) -> None:
    batches = [pa.record_batch({"s": pa.array(["a"] * 10)}), pa.record_batch({"s": texts([b"a", b"\xff"])})]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with pytest.raises(SchemaError, match="row 11"):
        write_dataset(reader, tmp_path / "t")
