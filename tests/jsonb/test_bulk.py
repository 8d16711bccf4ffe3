"""Documents that are encoded together have the bytes of those that are encoded one by one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from spark_lance.errors import SchemaError
from spark_lance.jsonb import binary as json_binary
from spark_lance.jsonb.binary import encode_alike, json_documents, json_texts
from spark_lance.jsonb.scan import TextScan

SPACES = ("", "", "", " ", "\n ", "\t\r\n")
KEYS = ("a", "b", "key", "é", "日本", "two words", "x.y", "", "$", "}", ":,", "zz", "(?P<v0>", "\\", '"')
# As they may be written: what the decoder makes of them is what counts.
NUMBERS = (
    "0", "-0", "-0.0", "0.0", "1", "-1", "127", "128", "-128", "-129", "255", "256", "65535", "65536",
    "-32768", "-32769", "4294967295", "4294967296", "-2147483648", "-2147483649", "99999999999999999",
    "999999999999999999", "1000000000000000000", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615", "18446744073709551616", "1e5",
    "1E+5", "1e-7", "2.5", "0.1", "123456789.123456789", "1.7976931348623157e308", "5e-324", "1e-400",
    "3.141592653589793115997963468544185161590576171875", "-1.5E3",
)  # fmt: skip
STRINGS = (
    "",
    "x",
    "true",
    "7",
    "é",
    "日本",
    "🎈",
    "a}b",
    "a,b",
    "{",
    "tab\tin",
    'quote"',
    "back\\slash",
    "\u2028",
)
BAD = ("", "{", "nul", '{"a":1}x', "01", "+1", "[1,]", '{"a":1,"a":2}', "1e999", '"\x01"', "NaN", '"\\ud800"')


def a_shape(draw: random.Random, depth: int = 0) -> Any:
    """Keys and lengths, as a tree; None for a value."""
    kind = draw.random()
    if (depth == 0 and kind < 0.85) or (depth < 4 and kind < 0.25):
        return {key: a_shape(draw, depth + 1) for key in draw.sample(KEYS, draw.randrange(6))}
    if depth < 4 and kind < 0.4:
        return [a_shape(draw, depth + 1) for _ in range(draw.randrange(4))]
    return None


def a_text(shape: Any, draw: random.Random, spaced: bool) -> str:
    """A text of a shape, with spaces perhaps."""

    def space() -> str:
        return draw.choice(SPACES) if spaced else ""

    if shape is None:
        kind = draw.random()
        if kind < 0.4:
            return draw.choice(NUMBERS)
        if kind < 0.8:
            return json.dumps(draw.choice(STRINGS), ensure_ascii=draw.random() < 0.3)
        return draw.choice(("true", "false", "null"))
    if isinstance(shape, list):
        parts = [a_text(part, draw, spaced) for part in shape]
        return f"[{space()}{f'{space()},{space()}'.join(parts)}{space()}]"
    parts = [
        f"{json.dumps(key, ensure_ascii=False)}{space()}:{space()}{a_text(part, draw, spaced)}"
        for key, part in shape.items()
    ]
    return f"{{{space()}{f'{space()},{space()}'.join(parts)}{space()}}}"


def to_json_texts(seed: int, count: int = 200) -> list[str]:
    draw = random.Random(seed)
    shapes = [a_shape(draw) for _ in range(draw.choice((1, 1, 2, 5)))]
    spaced = draw.random() < 0.5
    return [a_text(draw.choice(shapes), draw, spaced) for _ in range(count)]


def together(texts: list[str], like: str | None = None) -> tuple[Any, pa.Array] | None:
    return encode_alike(TextScan(pa.array(texts)), np.arange(len(texts)), texts[0] if like is None else like)


def one_by_one(texts: list[str]) -> list[bytes]:
    return [json_binary._document(text) for text in texts]


@pytest.mark.parametrize("seed", range(60))
def test_bytes_are_those_of_single_documents(seed: int) -> None:
    texts = to_json_texts(seed)
    result = json_documents(pa.array(texts, pa.string() if seed % 2 else pa.large_string()))
    assert result.to_pylist() == one_by_one(texts)
    alike = together(texts)
    if alike is not None:
        same, documents = alike
        expected = [text for text, is_same in zip(texts, same, strict=True) if is_same]
        assert documents.to_pylist() == one_by_one(expected)


def one_or_none(text: str) -> bytes | None:
    try:
        return json_binary._document(text)
    except SchemaError:
        return None


def changed(text: str, draw: random.Random) -> str:
    """A text with a few letters put in, taken out or replaced."""
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        at = draw.randrange(len(text) + 1)
        letter = draw.choice('{}[],:"\\ \n\x01\0' + "0123456789-+.eEtrufalsn")
        text = text[:at] + draw.choice(("", letter)) + text[at + draw.choice((0, 0, 1)) :]
    return text


def check_changed(seed: int, count: int) -> None:
    """Of texts that are mostly not JSON, those that are encoded together are JSON, and have its bytes."""
    draw = random.Random(seed)
    texts = to_json_texts(seed, count)
    like = texts[0]
    texts = [changed(text, draw) for text in texts]
    alike = together(texts, like)
    if alike is not None:
        same, documents = alike
        expected = [one_or_none(text) for text, is_same in zip(texts, same, strict=True) if is_same]
        assert documents.to_pylist() == expected


@pytest.mark.parametrize("seed", range(20000, 20060))
def test_texts_that_were_changed_at_random(seed: int) -> None:
    check_changed(seed, 200)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(21000, 21600))
def test_texts_that_were_changed_at_random_at_length(seed: int) -> None:
    check_changed(seed, 400)


def test_many_spaces_and_parts_of_arrays() -> None:
    texts = [
        f'{{{" " * (number % 200)}"a":{" " * number}{number},"b": "{" " * 99}"}}' for number in range(150)
    ]
    assert json_documents(pa.array(texts)).to_pylist() == one_by_one(texts)
    for part in (pa.array(texts)[40:120], pa.array(texts, pa.large_string())[100:]):
        assert json_documents(part).to_pylist() == one_by_one(part.to_pylist())


def test_quotes_inside_of_strings() -> None:
    alike = together(['{"a":"x","b":"y"}', '{"a":"x"y","b":1}', '{"a":"x"y"z","b":1}', '{"a":"x""y","b":2}'])
    assert alike is not None
    assert alike[0].tolist() == [True, False, False, False]


@pytest.mark.parametrize("count", [1, 100])
def test_texts_that_are_not_utf8_are_told(count: int) -> None:
    data = b'{"a":"\xff"}'
    offsets = pa.array(range(0, (count + 1) * len(data), len(data)), pa.int32())
    texts = pa.Array.from_buffers(
        pa.string(), count, [None, offsets.buffers()[1], pa.py_buffer(data * count)]
    )
    with pytest.raises(SchemaError, match="UTF-8"):
        json_documents(texts)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(600))
def test_bytes_are_those_of_single_documents_at_length(seed: int) -> None:
    texts = to_json_texts(1000 + seed, 300)
    assert json_documents(pa.array(texts)).to_pylist() == one_by_one(texts)


@pytest.mark.parametrize("seed", range(6))
def test_pylance_writes_the_same(tmp_path: Path, seed: int) -> None:
    # Numbers that the two write in different ways, and texts that pylance refuses, are tested elsewhere.
    texts = [
        text for text in to_json_texts(5000 + seed) if not any(n in text for n in ("e-", "E+", "1e5", "E3"))
    ]
    field = pa.field("j", pa.json_())
    lance.write_dataset(
        pa.table([pa.array(texts, pa.json_())], schema=pa.schema([field])), str(tmp_path / "t")
    )
    (file,) = (tmp_path / "t" / "data").iterdir()
    stored = lance.file.LanceFileReader(str(file)).read_all().to_table()["j"].combine_chunks()
    stored = stored.storage if isinstance(stored, pa.ExtensionArray) else stored
    theirs = stored.to_pylist()
    ours = json_documents(pa.array(texts))
    if isinstance(theirs[0], bytes):
        assert ours.to_pylist() == theirs
    else:
        assert json_texts(ours).to_pylist() == theirs


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_text_is_told(bad: str) -> None:
    texts = ['{"a":1}'.replace("1", str(number)) for number in range(100)]
    texts[70] = bad
    with pytest.raises(SchemaError, match="is not JSON that can be stored"):
        json_documents(pa.array(texts))


@pytest.mark.parametrize("text", ['{"a": 1e400, "n": %d}', '{"a": -1E309, "n": %d}', '{"\\ud800": %d}'])
def test_what_no_document_holds_is_refused_in_any_number(text: str) -> None:
    usual = [f'{{"a": {n}, "n": {n}}}' for n in range(200)]
    for texts in ([text % n for n in range(200)], [*usual, text % 7, *usual]):
        with pytest.raises(SchemaError, match=r"beyond the range of doubles|half of a surrogate pair"):
            json_documents(pa.array(texts))


def test_most_texts_of_a_shape_are_encoded_together() -> None:
    texts = [json.dumps({"b": number, "a": [str(number), None], "c": {"x": 0.5}}) for number in range(1000)]
    result = together(texts)
    assert result is not None
    assert result[0].all()
    texts[10] = '{"b": 1}'
    result = together(texts)
    assert result is not None
    assert np.flatnonzero(~result[0]).tolist() == [10]
    assert together(texts, '{"a":1,"a":2}') is None
    assert together(texts, "no json") is None
    assert together(texts, json.dumps(list(range(500)))) is None
    assert together(texts, "[" * 2000) is None


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("count", [0, 3, 1500])
@pytest.mark.parametrize("distinct", [3, 1500])
def test_all_types_of_text(kind: pa.DataType, count: int, distinct: int) -> None:
    """Whether or not most texts are distinct, with nulls and without, whole arrays and parts."""
    texts = [f'{{"a":{number % distinct},"b":"{"x" * (number % 5)}"}}' for number in range(count)]
    assert json_documents(pa.array(texts, kind)).to_pylist() == one_by_one(texts)
    some = [None if number % 7 == 2 else text for number, text in enumerate(texts)]
    rows = json_documents(pa.array(some, kind)[1:-1]).to_pylist()
    assert rows == [None if text is None else one_by_one([text])[0] for text in some[1:-1]]


def test_nulls_and_no_texts() -> None:
    assert json_documents(pa.array([], pa.string())).to_pylist() == []
    texts = [None if number % 3 else f"[{number}]" for number in range(200)]
    rows = json_documents(pa.array(texts)).to_pylist()
    assert [document is None for document in rows] == [text is None for text in texts]
    assert rows[0] == one_by_one(["[0]"])[0]


def test_texts_far_inside_a_long_column() -> None:
    """Their places have more than 32 bits; the bytes before them are memory that nobody touches."""
    texts = [f'{{"a": {number}}}' for number in range(100)]
    begin = 2**32 + 5
    data = np.zeros(begin + sum(map(len, texts)), np.uint8)
    data[begin:] = np.frombuffer("".join(texts).encode(), np.uint8)
    offsets = begin + np.cumsum([0, *map(len, texts)])
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
    column = pa.Array.from_buffers(pa.large_string(), len(texts), buffers)
    assert json_documents(column).to_pylist() == one_by_one(texts)
