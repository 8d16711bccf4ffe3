"""Documents of few shapes are read by columns; the text is that of reading value by value, and of pylance."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.errors import FormatError, LanceError
from spark_lance.jsonb import binary as json_binary
from spark_lance.jsonb.binary import find_same_shape, json_documents, json_texts
from spark_lance.jsonb.values import JsonValues

LEAVES: list[Any] = [
    None,
    True,
    False,
    0,
    7,
    -3,
    2**40,
    1.5,
    -0.0,
    1e-7,
    "",
    "x",
    'quo"te',
    "ä\n",
    "long " * 20,
]


def shaped(shape: Any, rng: random.Random) -> Any:
    if isinstance(shape, dict):
        return {key: shaped(value, rng) for key, value in shape.items()}
    if isinstance(shape, list):
        return [shaped(value, rng) for value in shape]
    return rng.choice(LEAVES)


SHAPES: list[Any] = [
    {"id": 0, "name": 0, "deep": {"x": 0, "y": [0, 0]}, "ä": 0},
    {"id": 0, "name": 0},
    {},
    [],
    [0, 0, 0],
    {"list": [{"a": 0}, {"a": 0, "b": 0}]},
    {"": {"": 0}},
    0,
]


def documents(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    weights = [2.0 ** -rng.randrange(6) for _ in SHAPES]
    return [json.dumps(shaped(rng.choices(SHAPES, weights)[0], rng)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
def test_text_is_that_of_reading_value_by_value(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = documents(seed, 500)
    stored = json_documents(pa.array([*texts, None, texts[0]]))
    by_columns = json_texts(stored)
    for text, result in zip(texts, by_columns.to_pylist(), strict=False):
        assert json.loads(result) == json.loads(text)
    monkeypatch.setattr(json_binary, "_LEAST_ALIKE", 1 << 60)
    assert json_texts(stored).equals(by_columns)


def test_the_first_decides_the_shape() -> None:
    values = JsonValues.of(
        json_documents(pa.array(['{"a":1,"b":"x"}', '{"a":null,"b":[1]}', '{"a":1}', "[1,2]"]))
    )
    result = find_same_shape(values)
    assert result is not None
    assert result.same.tolist() == [True, True, False, False]
    assert [len(column) for column in result.columns] == [2, 2]
    wide = json.dumps(dict.fromkeys(map(str, range(300))))
    assert find_same_shape(JsonValues.of(json_documents(pa.array([wide])))) is None


@pytest.mark.parametrize("seed", range(3))
def test_damage_gives_errors_or_text(seed: int) -> None:
    rng = np.random.default_rng(seed)
    stored = json_documents(pa.array(documents(seed, 60) + ['{"id": 1, "name": "x"}'] * 60)).to_pylist()
    refused = 0
    for _ in range(120):
        damaged = list(stored)
        for place in rng.integers(0, len(damaged), 3):
            data = bytearray(damaged[place])
            if data:
                data[rng.integers(0, len(data))] ^= 1 << int(rng.integers(0, 8))
            damaged[place] = (
                bytes(data[: rng.integers(0, len(data) + 1)]) if rng.random() < 0.3 else bytes(data)
            )
        try:
            json_texts(pa.array(damaged, pa.large_binary()))
        except LanceError:
            refused += 1
    assert refused


def test_values_beyond_their_container() -> None:
    good = json_documents(pa.array(['{"a":"xy"}'] * 40)).to_pylist()
    # The length of the value, in the last byte of the second entry.
    bad = bytearray(good[20])
    bad[11] = 40
    good[20] = bytes(bad)
    with pytest.raises(FormatError, match="longer than its bytes"):
        json_texts(pa.array(good, pa.large_binary()))
