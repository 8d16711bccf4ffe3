"""JSON out of files: every text is a value, or a ValueError."""

from __future__ import annotations

import pytest

from spark_lance.io.stored_json import parse_json, parse_object


def test_values_and_objects() -> None:
    assert parse_json(b"[1, 2.5, null]") == [1, 2.5, None]
    assert parse_object('{"a": {"b": []}}') == {"a": {"b": []}}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff", "9" * 5000])
def test_faults_are_value_errors(text: str | bytes) -> None:
    for parse in (parse_json, parse_object):
        with pytest.raises(ValueError):
            parse(text)


@pytest.mark.parametrize("text", ["[]", "0", "null", '"{}"'])
def test_other_values_are_no_objects(text: str) -> None:
    with pytest.raises(ValueError, match="a JSON object is needed"):
        parse_object(text)
