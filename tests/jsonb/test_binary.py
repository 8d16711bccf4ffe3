"""JSON documents: their stored form and their text are those of pylance."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import FormatError, LanceError, SchemaError, UnsupportedFormatError
from spark_lance.jsonb.binary import json_documents, json_texts
from spark_lance.jsonb.values import JsonValues

numbers = st.integers(-(2**64), 2**65) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]))
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=12, deadline=None)
@given(st.lists(values, min_size=1, max_size=60))
def test_bytes_and_text_are_those_of_pylance(found: list[Any]) -> None:
    texts: list[str | None] = [json.dumps(value) for value in found]
    column = pa.array([*texts, None], pa.json_())
    ours = json_documents(column.storage)
    with tempfile.TemporaryDirectory() as folder:
        lance.write_dataset(pa.table({"j": column}), folder + "/t")
        theirs = lance.dataset(folder + "/t")
        read = theirs.to_table()["j"].to_pylist()
        # A computed column comes without the type, as it is stored.
        stored = theirs.to_table(columns={"r": "coalesce(j, j)"})["r"].combine_chunks()
    assert ours.to_pylist() == stored.cast(pa.large_binary()).to_pylist()
    assert json_texts(ours).to_pylist() == read
    assert JsonValues.of(ours).documents().equals(ours)
    assert json_texts(ours.slice(1)).to_pylist() == read[1:]


def json_text(data: bytes) -> str:
    return str(json_texts(pa.array([data], pa.large_binary()))[0].as_py())


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("4000000110000001200000026" + "15007", '{"a":7}'),
        ("200000002000000100", "0"),
        ("2000000020000009603ff8000000000000", "1.5"),
        ("80000003000000003000000040000000", "[null,false,true]"),
        ("2000000010000008c3a90a225c20012f", '"é\\n\\"\\\\ \\u0001/"'),
    ],
)
def test_bytes_by_hand(stored: str, text: str) -> None:
    assert json_text(bytes.fromhex(stored)) == text


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "20",
        "20000000",
        "8000000f",
        "2000000010000005aa",
        "2000000010000001ff",
        "a0000000",
        "2000000060000000",
    ],
)
def test_damage_is_refused(stored: str) -> None:
    with pytest.raises((FormatError, UnsupportedFormatError)):
        json_text(bytes.fromhex(stored))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("10", "null"),
        ("20", "null"),
        ("607ff0000000000000", "null"),
        ("70000000000000303902", "123.45"),
        ("70ffffffffffffffff00", "-1"),
        ("40fe", "-2"),
        ("50ffffffffffffffff", "18446744073709551615"),
    ],
)
def test_numbers_that_are_not_written(number: str, text: str) -> None:
    data = bytes.fromhex(number)
    assert json_text(struct.pack(">II", 0x20000000, 0x20000000 | len(data)) + data) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "nan",
        "NaN",
        "-Infinity",
        "1e400",
        "1" + "0" * 400,
        "1" * 5000,
        "{'a':1}",
        "{a:1}",
        "[1,]",
        "[1 2]",
        "01",
        "+1",
        ".5",
        "1.",
        "0x10",
        '{"a":1}x',
        '{"a":1,"a":2}',
        '[{"b":{"a":1,"a":1}}]',
        '"\\ud800"',
        '{"\\udfff":1}',
        "tru",
        '"a\tb"',
        "Null",
        "[" * 130 + "]" * 130,
        "[" * 100000,
    ],
)
def test_text_that_is_no_json(text: str) -> None:
    with pytest.raises(SchemaError, match="is not JSON that can be stored"):
        json_documents(pa.array(["1", text]))


def test_deep_nesting_is_refused() -> None:
    data = bytes.fromhex("80000000")
    for _ in range(400):
        data = bytes.fromhex("80000001") + (0x50000000 | len(data)).to_bytes(4, "big") + data
    with pytest.raises(UnsupportedFormatError, match="levels deep"):
        json_text(data)


@given(st.binary(max_size=60))
def test_any_bytes_give_text_or_an_error(data: bytes) -> None:
    with contextlib.suppress(LanceError):
        json.loads(json_text(data))
