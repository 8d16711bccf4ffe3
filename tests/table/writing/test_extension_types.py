"""Extension types: written so that pylance opens them, and read as themselves, alone and inside of others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance import dataset, write_dataset
from spark_lance.errors import SchemaError
from spark_lance.file.base.extensions import restore_table_types

VERSIONS = ["2.0", "2.1", "2.2"]


class Money(pa.ExtensionType):  # type: ignore[misc]
    """A type of a user, with a parameter."""

    def __init__(self, currency: str = "EUR") -> None:
        self.currency = currency
        super().__init__(pa.int64(), "tests.money")

    def __arrow_ext_serialize__(self) -> bytes:
        return self.currency.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> Money:
        return cls(data.decode())


class Blunt(pa.ExtensionType):  # type: ignore[misc]
    """A type whose parameters are not text."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "tests.blunt")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"\xff\x00"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> Blunt:
        return cls()


def extension(kind: pa.BaseExtensionType, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def kinds() -> dict[str, pa.Array]:
    tensor = pa.fixed_shape_tensor(pa.float32(), [2, 2], dim_names=["a", "b"])
    results = {
        "tensor": extension(tensor, [[1, 2, 3, 4], None, [5, 6, 7, 8]]),
        "opaque": extension(pa.opaque(pa.int32(), "thing", "vendor"), [1, None, 3]),
        "opaque_text": extension(pa.opaque(pa.string(), "geometry", "x\u00e9"), ["a", None, ""]),
        "uuid": pa.array([b"0" * 16, None, b"1" * 16], pa.uuid()),
        "money": extension(Money("USD"), [1, None, 3]),
    }
    if hasattr(pa, "bool8"):
        results["bool8"] = extension(pa.bool8(), [1, None, 0])
    return results


def table_of(array: pa.Array) -> pa.Table:
    """Return a table with a column alone, in lists, in structs, and in structs in lists."""
    fields = [pa.field("f", array.type), pa.field("n", pa.int32())]
    struct = pa.StructArray.from_arrays([array, pa.array([1, 2, 3], pa.int32())], fields=fields)
    return pa.table(
        {
            "id": [1, 2, 3],
            "x": array,
            "l": pa.ListArray.from_arrays([0, 2, 2, 3], array),
            "s": struct,
            "ls": pa.ListArray.from_arrays([0, 0, 1, 3], struct),
        }
    )


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    pa.register_extension_type(Money())
    yield
    pa.unregister_extension_type("tests.money")


def their(path: Path, **options: Any) -> pa.Table:
    table: Any = lance.dataset(str(path))
    return table.to_table(**options)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(kinds()))
def test_they_pass_in_both_directions(name: str, version: str, tmp_path: Path) -> None:
    table = table_of(kinds()[name])
    ours = write_dataset(table, tmp_path / "o", data_storage_version=version)
    write: Any = lance.write_dataset
    write(table, str(tmp_path / "t"), data_storage_version=version)
    theirs = dataset(tmp_path / "t")
    assert {f.name: dict(f.metadata) for f in ours.lance_schema.walk()} == {
        f.name: dict(f.metadata) for f in theirs.lance_schema.walk()
    }
    for read in (ours, theirs):
        assert read.schema == table.schema
        assert read.to_table() == table
        assert read.to_table(["l"], filter="id = 3") == table.slice(2).select(["l"])
        assert read.take([2, 0]) == table.take([2, 0])
        assert pa.Table.from_batches(read.to_batches(batch_size=2)) == table
        assert read.to_table(limit=0).schema == table.schema
    assert their(tmp_path / "o") == table


@pytest.mark.parametrize("name", sorted(kinds()))
def test_every_way_of_writing_keeps_them(name: str, tmp_path: Path) -> None:
    table = table_of(kinds()[name])
    path = tmp_path / "t"
    write_dataset(table, path, enable_stable_row_ids=True)
    write_dataset(dataset(path).to_table(), path, mode="append")
    more = table.set_column(0, "id", pa.array([3, 4, 5]))
    dataset(path).merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(more)
    dataset(path).merge(more.select(["id", "x"]).rename_columns(["id", "y"]), "id")
    dataset(path).compact_files()
    result = dataset(path).to_table()
    assert result.schema.field("x").type == result.schema.field("y").type == table.schema.field("x").type
    assert their(path) == result
    everything = [1, 2, 3, 3, 1, 2, 4, 5]
    assert sorted(result["id"].to_pylist()) == sorted(everything)
    write_dataset(result, path, mode="overwrite")
    assert their(path) == result
    changed = dataset(path).diff(0).inserted()
    assert changed.schema.field("l").type == table.schema.field("l").type
    assert changed.read_all()["x"].to_pylist() == result["x"].to_pylist()


def test_maps_have_them_too(tmp_path: Path) -> None:
    uuids = pa.array([b"0" * 16, b"1" * 16], pa.uuid())
    maps = pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), uuids)
    table = pa.table({"m": maps})
    assert write_dataset(table, tmp_path / "t").to_table() == table
    assert their(tmp_path / "t") == table


def test_types_that_are_not_registered_keep_name_and_parameters(tmp_path: Path) -> None:
    write_dataset(pa.table({"x": extension(Money("CHF"), [1, None])}), tmp_path / "t")
    pa.unregister_extension_type("tests.money")
    try:
        for result in (dataset(tmp_path / "t").to_table(), their(tmp_path / "t")):
            field = result.schema.field("x")
            assert field.type == pa.int64()
            assert field.metadata[b"ARROW:extension:name"] == b"tests.money"
            assert field.metadata[b"ARROW:extension:metadata"] == b"CHF"
    finally:
        pa.register_extension_type(Money())
    assert dataset(tmp_path / "t").schema.field("x").type == Money("CHF")


def test_parameters_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"column 'x': .*tests.blunt.*store the column as int64"):
        write_dataset(pa.table({"x": extension(Blunt(), [1])}), tmp_path / "t")
    field = pa.field("x", pa.int64(), metadata={b"k": b"\xff"})
    with pytest.raises(SchemaError, match="column 'x' has metadata that is not text"):
        write_dataset(pa.table([pa.array([1])], schema=pa.schema([field])), tmp_path / "t")


def test_another_type_of_the_same_storage_is_not_appended(tmp_path: Path) -> None:
    one, other = (pa.fixed_shape_tensor(pa.float32(), shape) for shape in ([2, 2], [4, 1]))
    write_dataset(pa.table({"x": extension(one, [[1, 2, 3, 4]])}), tmp_path / "t")
    with pytest.raises(SchemaError, match=r"shape=\[4,1\].* in the data and .*shape=\[2,2\].* in the table"):
        write_dataset(pa.table({"x": extension(other, [[1, 2, 3, 4]])}), tmp_path / "t", mode="append")
    storage = pa.table({"x": pa.array([[5, 6, 7, 8]], one.storage_type)})
    assert write_dataset(storage, tmp_path / "t", mode="append").schema.field("x").type == one


def test_parameters_that_do_not_fit_leave_the_storage_type(tmp_path: Path) -> None:
    field = pa.field("x", pa.int8(), metadata={"ARROW:extension:name": "arrow.uuid"})
    table = write_dataset(pa.table([pa.array([1], pa.int8())], schema=pa.schema([field])), tmp_path / "t")
    assert table.to_table().schema.field("x").type == pa.int8()


@settings(max_examples=30)
@given(st.data())
def test_parts_of_arrays_come_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    array = data.draw(st.sampled_from(sorted(kinds().items())))[1]
    table = table_of(array)
    parts = []
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, 3))
        parts.append(table.slice(start, data.draw(st.integers(0, 3 - start))))
    whole = pa.concat_tables(parts)
    version = data.draw(st.sampled_from(VERSIONS))
    result = write_dataset(whole, tmp_path_factory.mktemp("e") / "t", data_storage_version=version).to_table()
    result.validate(full=True)
    assert result == whole
    assert restore_table_types(result) == whole
