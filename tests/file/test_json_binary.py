"""JSON columns: the stored form that pylance writes becomes the text that it reads."""

from __future__ import annotations

import contextlib
import json
import tempfile
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import FormatError, LanceError, UnsupportedFormatError
from spark_lance.file.json_binary import json_text, json_texts

numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text(st.characters(exclude_categories=["Cs"]))
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=12, deadline=None)
@given(st.lists(values, min_size=1, max_size=40))
def test_what_pylance_writes_is_read_as_the_same_json(found: list[Any]) -> None:
    texts: list[str | None] = [json.dumps(value) for value in found]
    with tempfile.TemporaryDirectory() as folder:
        lance.write_dataset(pa.table({"j": pa.array([*texts, None], pa.json_())}), folder + "/t")
        theirs = lance.dataset(folder + "/t").to_table()["j"].to_pylist()
        stored = spark_lance.dataset(folder + "/t").to_table()["j"].combine_chunks()
    ours = json_texts(stored).to_pylist()
    assert ours[-1] is None
    assert [json.loads(text) for text in ours[:-1]] == [json.loads(text) for text in theirs[:-1]]


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
