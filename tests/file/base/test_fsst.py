"""FSST decoding against a plain twin."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError
from spark_lance.file.base import fsst
from spark_lance.file.base.fsst import SYMBOL_TABLE_SIZE, decode_fsst


def symbol_table(symbols: list[bytes], coded: int = 1) -> bytes:
    head = bytes([len(symbols), 0, 0, coded]) + b"TSSF"
    body = b"".join(symbol.ljust(8, b"\0") for symbol in symbols)
    return (head + body + bytes(map(len, symbols))).ljust(SYMBOL_TABLE_SIZE, b"\0")


def decode(table: bytes, strings: list[bytes], lead: bytes = b"") -> list[bytes]:
    """Decode strings of codes that lie behind `lead` in the data."""
    offsets = np.cumsum([len(lead), *map(len, strings)]).astype(np.int64)
    data = np.frombuffer(lead + b"".join(strings), np.uint8)
    out_offsets, out = decode_fsst(table, offsets, data)
    assert out_offsets[0] == 0
    assert out_offsets[-1] == len(out)
    text = out.tobytes()
    return [text[a:b] for a, b in pairwise(out_offsets)]


SYMBOLS = st.lists(st.binary(min_size=1, max_size=8), max_size=255)
TOKENS = st.lists(st.tuples(st.booleans(), st.one_of(st.just(255), st.integers(0, 255))), max_size=12)
# Code by code, and in pairs.
PAIRS_FROM = pytest.mark.parametrize("pairs_from", [0, 1 << 30])


@PAIRS_FROM
@given(symbols=SYMBOLS, texts=st.lists(TOKENS, max_size=8), step=st.sampled_from([1, 3, 1 << 24]))
def test_against_a_plain_decoder(
    pairs_from: int, symbols: list[bytes], texts: list[list[tuple[bool, int]]], step: int
) -> None:
    codes, expected = [], []
    for tokens in texts:
        code, text = b"", b""
        for literal, value in tokens:
            if literal or value >= len(symbols):
                code += bytes([255, value])
                text += bytes([value])
            else:
                code += bytes([value])
                text += symbols[value]
        codes.append(code)
        expected.append(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsst, "_PAIRS_FROM", pairs_from)
        patch.setattr(fsst, "_STEP", step)
        assert decode(symbol_table(symbols), codes, lead=b"\xff\x00") == expected


@PAIRS_FROM
def test_runs_of_escapes_keep_to_their_strings(pairs_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsst, "_PAIRS_FROM", pairs_from)
    table = symbol_table([b"ab", b"c"])
    assert decode(table, [b"\xff\xff", b"\xff\x00\x01", b"", b"\x00"]) == [b"\xff", b"\x00c", b"", b"ab"]


@PAIRS_FROM
def test_a_string_starts_behind_an_escape_that_two_pairs_share(
    pairs_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsst, "_PAIRS_FROM", pairs_from)
    table = symbol_table([b"four", b"to"])
    # Pairs: (0, escape), (7, 1), (escape, 0), (0, escape), (255, nothing).
    strings = [b"\x00\xff\x07", b"\x01\xff\x00", b"\x00\xff\xff"]
    assert decode(table, strings) == [b"four\x07", b"to\x00", b"four\xff"]


@PAIRS_FROM
@pytest.mark.parametrize("codes", [b"\x00\x00\x00\x00", b"\x00\xff\x07\x00"])
def test_strings_outside_their_codes(pairs_from: int, codes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsst, "_PAIRS_FROM", pairs_from)
    offsets = np.array([0, 9000, 4], dtype=np.int64)
    with pytest.raises(FormatError):
        decode_fsst(symbol_table([b"ab"]), offsets, np.frombuffer(codes, np.uint8))


def test_data_that_is_not_coded() -> None:
    assert decode(symbol_table([], coded=0), [b"plain", b"", b"\xff"]) == [b"plain", b"", b"\xff"]


@PAIRS_FROM
@pytest.mark.parametrize(
    ("table", "codes"),
    [
        (symbol_table([b"a"]), [b"\x01"]),
        (symbol_table([b"a"]), [b"\x00\xff"]),
        (symbol_table([b"a"]), [b"\x00\xff", b"\x00"]),
        (symbol_table([b"a"]), [b"\xff\xff\xff", b"\x00"]),
        (symbol_table([b"a"])[:100], [b"\x00"]),
        (b"\0" * SYMBOL_TABLE_SIZE, [b"\x00"]),
        (symbol_table([b""]), [b"\x00"]),
        (symbol_table([b"123456789"]), [b"\x00"]),
    ],
    ids=[
        "no symbol",
        "open end",
        "escape over a boundary",
        "run over a boundary",
        "short",
        "no magic",
        "length 0",
        "length 9",
    ],
)
def test_damage(pairs_from: int, table: bytes, codes: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsst, "_PAIRS_FROM", pairs_from)
    with pytest.raises(FormatError):
        decode(table, codes)
