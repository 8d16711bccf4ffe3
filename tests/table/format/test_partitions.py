# ruff: noqa: E501
"""Partition fields: their setting, and values of transforms as Iceberg's specification has them."""

from __future__ import annotations

import base64
import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import OptionError, SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.io.local import LocalStore
from spark_lance.table.format.partition_bounds import (
    FieldBounds,
    bounds_text,
    read_bounds,
)
from spark_lance.table.format.partitions import (
    PARTITION_FIELDS,
    PartitionField,
    PartitionSpec,
    parse_transform,
)
from spark_lance.table.format.paths import new_data_file_name

NIGHT = datetime.datetime(1969, 12, 31, 23, 59, 59)
TIME = datetime.datetime(2017, 11, 16, 22, 31, 8)
DAY = datetime.date(2017, 11, 16)
# Hashes are those of appendix B of the specification.
HASHES = [
    (pa.int32(), 34, 2017239379),
    (pa.int64(), 34, 2017239379),
    (pa.decimal128(9, 2), Decimal("14.20"), -500754589),
    (pa.date32(), DAY, -653330422),
    (pa.timestamp("us"), TIME, -2047944441),
    (pa.string(), "iceberg", 1210000089),
    (pa.binary(), b"\x00\x01\x02\x03", -188683207),
]
VALUES = [
    ("truncate[10]", pa.int32(), [1, -1, -10, None], [0, -10, -10, None]),
    ("truncate[50]", pa.decimal128(9, 2), [Decimal("10.65"), Decimal("-0.01")], [Decimal("10.50"), Decimal("-0.50")]),
    ("truncate[1000]", pa.decimal128(38, 0), [Decimal(10**37 + 1234)], [Decimal(10**37 + 1000)]),
    ("truncate[3]", pa.string(), ["iceberg", "äöüß", "", None], ["ice", "äöü", "", None]),
    ("truncate[2]", pa.binary(), [b"\x01\x02\x03", b""], [b"\x01\x02", b""]),
    ("hour", pa.timestamp("us"), [NIGHT, TIME, None], [-1, 419686, None]),
    ("day", pa.timestamp("ms"), [NIGHT, TIME], [datetime.date(1969, 12, 31), DAY]),
    ("day", pa.date32(), [DAY, None], [DAY, None]),
    ("month", pa.date32(), [datetime.date(1969, 12, 31), DAY], [-1, 574]),
    ("year", pa.timestamp("us", "America/New_York"), [NIGHT.replace(tzinfo=datetime.timezone.utc)], [-1]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "expected"), HASHES, ids=[str(case[0]) for case in HASHES])
def test_hashes(kind: pa.DataType, value: Any, expected: int) -> None:
    column = pa.chunked_array([pa.array([value, None], kind)])
    buckets = PartitionField.of("c", "bucket", 2**31 - 1).values(column)
    assert buckets.to_pylist() == [(expected & 0x7FFFFFFF) % (2**31 - 1), None]


@pytest.mark.parametrize(
    ("text", "kind", "values", "expected"), VALUES, ids=[str(case[:2]) for case in VALUES]
)
def test_values(text: str, kind: pa.DataType, values: list[Any], expected: list[Any]) -> None:
    item = {"name": "f", "source": "c", "transform": text}
    spec = PartitionSpec.of_config({PARTITION_FIELDS: f"[{item}]".replace("'", '"')})
    assert spec.values(pa.table({"c": pa.array(values, kind)}))["f"].to_pylist() == expected


def test_a_declaration_is_bound_to_columns() -> None:
    columns = Schema.from_arrow(
        pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us")), ("s", pa.string())])
    )
    texts = ["ID", "days(ts)", "bucket(16, id)", "truncate(4, `s`)"]
    spec = PartitionSpec(tuple(map(parse_transform, texts))).bound(columns)
    assert [field.name for field in spec.fields] == ["id", "ts_day", "id_bucket", "s_trunc"]
    assert [field.sql for field in spec.fields] == ["id", "days(ts)", "bucket(16, id)", "truncate(4, s)"]
    again = PartitionSpec.of_config({PARTITION_FIELDS: spec.text()})
    assert again == spec
    renamed = Schema.from_arrow(
        pa.schema([("number", pa.int64()), ("ts", pa.timestamp("us")), ("s", pa.string())])
    )
    assert [(field.name, field.source) for field in spec.renamed(columns, renamed).fields] == [
        ("number", "number"),
        ("ts_day", "ts"),
        ("id_bucket", "number"),
        ("s_trunc", "s"),
    ]
    with pytest.raises(SchemaError, match=r"DROP PARTITION FIELD days\(ts\)"):
        again.bound(Schema.from_arrow(pa.schema([("id", pa.int64())])))
    assert [
        field.sql for field in again.present(Schema.from_arrow(pa.schema([("id", pa.int64())]))).fields
    ] == [
        "id",
        "bucket(16, id)",
    ]


@pytest.mark.reference
def test_fields_follow_their_columns_by_name(tmp_path: Path) -> None:
    import lance

    def column() -> str:
        dataset = spark_lance.dataset(path)
        (field,) = PartitionSpec.of_config(dataset.config()).bound(dataset.lance_schema).fields
        return field.source

    path = str(tmp_path / "t")
    dataset = spark_lance.write_dataset(pa.table({"a": [1], "b": [2]}), path)
    spec = PartitionSpec((parse_transform("bucket(4, b)"),)).bound(dataset.lance_schema)
    dataset.update_config({PARTITION_FIELDS: spec.text()})
    # Both writers give replaced columns new ids.
    lance.write_dataset(pa.table({"c": [1], "a": [1], "b": [2]}), path, mode="overwrite")
    assert column() == "b"
    spark_lance.write_dataset(pa.table({"b": [2], "c": [1]}), path, mode="overwrite")
    assert column() == "b"
    # This package renames the column of the field, too. A later column of the former name is another one.
    spark_lance.dataset(path).alter_columns({"path": "b", "name": "d"}, {"path": "c", "name": "b"})
    assert column() == "d"
    lance.dataset(path).alter_columns({"path": "d", "name": "e"})  # type: ignore[dict-item]
    with pytest.raises(SchemaError, match=r"DROP PARTITION FIELD bucket\(4, d\)"):
        column()
    lance.write_dataset(pa.table({"x": [1], "y": [2], "z": [3]}), path, mode="overwrite")
    with pytest.raises(SchemaError, match="the table has x, y, z"):
        column()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weeks(ts)", "has no transform 'weeks'"),
        ("bucket(id)", r"write bucket\(16, column\)"),
        ("days(4, ts)", r"write days\(column\)"),
        ("bucket(0, id)", "from 1 on"),
        ("bucket(4, a, b)", "is not understood"),
    ],
)
def test_bad_transforms(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_transform(text)


@pytest.mark.parametrize(
    "text", ["{", "[1]", '[{"name": "a"}]', '[{"name": "a", "source": "a", "transform": "week"}]']
)
def test_damaged_settings(text: str) -> None:
    with pytest.raises(OptionError, match=PARTITION_FIELDS):
        PartitionSpec.of_config({PARTITION_FIELDS: text})


def test_bounds_in_names() -> None:
    bounds = [
        FieldBounds(0, "identity", "ä/b", "z", True),
        FieldBounds(2, "day", -3, 20000, False),
        FieldBounds(3, "identity", Decimal("1.50"), Decimal("2.00"), False),
        FieldBounds(4, "identity", None, None, True),
    ]
    name = new_data_file_name("0123456789abcdef", bounds_text(bounds))
    assert list(read_bounds(f"data/{name}")) == bounds
    assert bounds_text([FieldBounds(0, "identity", "x" * 300, "x" * 300, False)]) == ""
    assert read_bounds(new_data_file_name()) == ()
    for text in ("-p-", "-p-AAAA", "-p-!!!", "-p-" + "W10"):
        assert read_bounds(new_data_file_name("", text)) == ()


def test_the_longest_names_with_bounds_can_be_written(tmp_path: Path) -> None:
    store = LocalStore()
    lengths = set()
    for length in range(1, 120):
        text = bounds_text([FieldBounds(0, "identity", "x" * length, "y", False)])
        name = new_data_file_name("0123456789abcdef", text)
        output = store.create(str(tmp_path / name))
        output.write(b"a")
        output.close()
        lengths.add(len(name))
    assert max(lengths) > 230


@pytest.mark.parametrize(
    "items",
    [
        '[[0, "identity", {"decimal": "x"}, {"decimal": "1"}, 0]]',
        '[[Infinity, "identity", 1, 2, 0]]',
        '[[0, "identity", [1], [2], 0]]',
        '[[0, "identity", 0.5, 1.5, 0]]',
        '[[0, "secret", 1, 2, 0]]',
        '[[0, "bucket", 1, 2, 0]]',
        '[[0, "bucket[0]", 1, 2, 0]]',
        '[[0, "bucket[99999999999999]", 1, 2, 0]]',
        '[[0, "day[3]", 1, 2, 0]]',
        "[[0, 5, 1, 2, 0]]",
        "[" * 100_000,
    ],
)
def test_a_name_of_somebody_else_has_no_bounds(items: str) -> None:
    text = base64.urlsafe_b64encode(items.encode()).decode().rstrip("=")
    assert read_bounds(new_data_file_name("", f"-p-{text}")) == ()
