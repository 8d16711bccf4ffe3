"""Schemas: Arrow to fields and back, the flattened form, ids, and which fields own columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import ColumnNotFoundError, FormatError, SchemaError, UnsupportedFormatError
from spark_lance.file.base.logical import from_logical, to_logical
from spark_lance.file.base.schema import Field, Schema, owned_columns, paths, quote_name, split_path
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import file_pb2
from tests.strategies import arrow_types

NESTED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("s", pa.struct([("x", pa.float32()), ("l", pa.list_(pa.struct([("y", pa.string())])))])),
        pa.field("v", pa.list_(pa.float32(), 4), metadata={"note": "a vector"}),
        pa.field("m", pa.map_(pa.string(), pa.int8())),
    ],
    metadata={"made": "here"},
)


@settings(max_examples=200)
@given(kind=arrow_types("2.2"), nullable=st.booleans())
def test_arrow_types_survive_both_forms(kind: pa.DataType, nullable: bool) -> None:
    arrow = pa.schema([pa.field("c", kind, nullable or pa.types.is_null(kind))])
    schema = Schema.from_arrow(arrow)
    assert schema.to_arrow() == arrow
    assert Schema.from_protos(schema.to_protos()) == schema


def test_ids_are_depth_first_and_metadata_is_kept() -> None:
    schema = Schema.from_arrow(NESTED)
    assert [(field.name, field.id) for field in schema.walk()] == [
        *(("id", 0), ("s", 1), ("x", 2), ("l", 3), ("item", 4), ("y", 5), ("v", 6)),
        *(("m", 7), ("entries", 8), ("key", 9), ("value", 10)),
    ]
    messages = schema.to_protos()
    assert [message.parent_id for message in messages] == [-1, -1, 1, 1, 3, 4, -1, -1, 7, 8, 8]
    back = Schema.from_protos(messages, {"made": b"here"})
    assert back == schema
    assert back.to_arrow().equals(NESTED, check_metadata=True)


@pytest.mark.parametrize(
    ("version", "owners"),
    [
        (FileVersion.V2_0, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (FileVersion.V2_1, [0, 2, 5, 6, 9, 10]),
        (FileVersion.V2_2, [0, 2, 5, 6, 9, 10]),
    ],
)
def test_owned_columns(version: FileVersion, owners: list[int]) -> None:
    assert [field.id for field in owned_columns(Schema.from_arrow(NESTED).fields, version)] == owners


def test_paths_lead_to_every_leaf() -> None:
    field = Schema.from_arrow(NESTED).field("s")
    assert [[node.name for node in path] for path in paths(field)] == [["s", "x"], ["s", "l", "item", "y"]]


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a", ["a"]),
        ("a.b", ["a", "b"]),
        ("`a`.`b.c`", ["a", "b.c"]),
        ("a.`b``.c`.d", ["a", "b`.c", "d"]),
        ("a.b`c", ["a", "b`c"]),
        ("a.`b", ["a", "`b"]),
        ("a.``", ["a", "``"]),
        ("`a.b`c.d", ["`a", "b`c", "d"]),
        ("a.", ["a", ""]),
        ("`a`.", ["a", ""]),
    ],
)
def test_names_in_backticks(path: str, names: list[str]) -> None:
    assert split_path(path) == names
    assert split_path(".".join(map(quote_name, names))) == names


def test_pruning_keeps_ids_and_drops_empty_parents() -> None:
    pruned = Schema.from_arrow(NESTED).prune({5, 9})
    assert [(field.name, field.id) for field in pruned.walk()] == [
        *(("s", 1), ("l", 3), ("item", 4), ("y", 5)),
        *(("m", 7), ("entries", 8), ("key", 9)),
    ]


@pytest.mark.parametrize(
    "field",
    [
        pa.field("a.b", pa.int8()),
        pa.field("_rowid", pa.int8()),
        pa.field("x", pa.list_(pa.string(), 2)),
        pa.field("x", pa.month_day_nano_interval()),
        pa.field("x", pa.run_end_encoded(pa.int32(), pa.int8())),
        pa.field("x", pa.dictionary(pa.int8(), pa.list_(pa.int8()))),
    ],
    ids=str,
)
def test_what_lance_cannot_store_is_named(field: pa.Field) -> None:
    with pytest.raises(SchemaError, match=field.name.replace(".", r"\.")):
        Schema.from_arrow(pa.schema([field]))


def test_a_name_may_not_occur_twice() -> None:
    with pytest.raises(SchemaError, match="twice"):
        Schema.from_arrow(pa.schema([("x", pa.int8()), ("x", pa.int8())]))


@pytest.mark.parametrize(
    "messages",
    [
        [file_pb2.Field(id=1, parent_id=0, name="orphan", logical_type="int8")],
        [file_pb2.Field(id=1, parent_id=-1, name=n, logical_type="int8") for n in "ab"],
        [file_pb2.Field(id=0, parent_id=0, name="own child", logical_type="int8")],
    ],
)
def test_broken_trees_are_format_errors(messages: list[file_pb2.Field]) -> None:
    with pytest.raises(FormatError):
        Schema.from_protos(messages)


@pytest.mark.parametrize(
    "logical",
    [
        "",
        "int7",
        "decimal:64:1:1",
        "fixed_size_list:float:x",
        "fixed_size_list:float:0",
        "time32:us",
        "dict:int8",
        "fixed_size_binary:99999999999",
        "fixed_size_list:int8:99999999999",
        "fixed_size_list:null:3",
        "fixed_size_list:dict:string:int8:false:2",
        "decimal:128:3:9999999999",
        "dict:int8:string:false",
        "dict:dict:int8:int8:false:int8:false",
        "dict:" * 3000 + "int8" + ":int8:false" * 3000,
        "fixed_size_list:" * 3000 + "int8" + ":1" * 3000,
    ],
)
def test_unknown_logical_types_are_refused(logical: str) -> None:
    with pytest.raises(UnsupportedFormatError):
        from_logical(logical)


@pytest.mark.parametrize("length", ["@", "", "0", "-1", "2147483648", "9" * 5000])
def test_lengths_of_lists_of_structs(length: str) -> None:
    kind = Field(0, "a", f"fixed_size_list:struct:{length}", children=(Field(1, "item", "struct"),))
    with pytest.raises(FormatError, match="logical type"):
        kind.arrow_type()


def test_nested_fixed_size_lists_name_the_outer_length_last() -> None:
    kind = pa.list_(pa.list_(pa.float32(), 3), 2)
    assert to_logical(kind) == "fixed_size_list:fixed_size_list:float:3:2"
    assert from_logical(to_logical(kind)) == kind


@given(st.lists(arrow_types("2.2"), min_size=1, max_size=4))
@settings(max_examples=100, deadline=None)
def test_paths_lead_to_fields_and_back(kinds: list[pa.DataType]) -> None:
    schema = Schema.from_arrow(pa.schema([(f"c{place}", kind) for place, kind in enumerate(kinds)]))
    named = [
        field
        for field in schema.walk()
        if list(schema.paths.values()).count(schema.field_path(field.id)) == 1
    ]
    for field in named:
        result = schema.find(schema.field_path(field.id))
        assert result[-1] == field
        assert [part.id for part in result] == sorted({part.id for part in result})
        names = [part.name for part in result]
        through_structs = all(part.kind == "struct" for part in result[:-1])
        assert schema.find_path(names) == (result if through_structs else None)
        if not through_structs:
            with pytest.raises(ColumnNotFoundError, match="there is no field"):
                schema.find(schema.field_path(field.id), only_structs=True)


def test_paths_that_lead_nowhere() -> None:
    top = Field(0, "s", "struct", children=(Field(1, "a", "int32"), Field(2, "b", "int32")))
    schema = Schema((top, Field(3, "s.a", "string")))
    # A column of the whole name goes first.
    assert schema.find("s.a")[-1].id == 3
    assert schema.find("s.b") == (top, top.children[1])
    with pytest.raises(ColumnNotFoundError, match=r"there is no field 's\.c': 's' has a, b"):
        schema.find("s.c")
    with pytest.raises(ColumnNotFoundError, match="no column 't'; the table has s"):
        schema.find("t.a")
    assert schema.find_path(("s", "c")) is None
    assert schema.find_path(("t",)) is None
    with pytest.raises(ColumnNotFoundError, match="no field with the id 9"):
        schema.field_path(9)
