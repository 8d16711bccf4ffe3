"""NGRAM: for each trigram, the rows whose text contains it.

    ngram_postings.lance    tokens: uint32, ascending; posting_list: binary, a 64-bit Roaring bitmap

Text is lowercased and accented letters are replaced by ASCII letters. All characters except a-z and 0-9 are
gaps. The token of a trigram is p1 * 37^2 + p2 * 37 + p3, where digits are 1 to 10 and letters 11 to 36. Token
0 has the null rows. A text that contains a substring has all trigrams of the substring, so only rows with all
these trigrams can match. Not exact. (Lance index format, n-gram.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from spark_lance.errors import FormatError
from spark_lance.index.base.building import Numbers, Rows, SegmentTarget
from spark_lance.index.base.files import IndexFile, IndexFileWriter, RowAddressMap
from spark_lance.index.base.row_sets import treemap_numbers
from spark_lance.index.scalar.base import ScalarIndex, remap_sets
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.index.text.tokenizer import folded
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.row_set import RowSet

FILE = "ngram_postings.lance"
_NULLS = 0
_BASE = 37
_RUN_TOKENS = 1024
_SCHEMA = pa.schema([pa.field("tokens", pa.uint32()), pa.field("posting_list", pa.binary(), False)])

# If more rows remain, the index does not answer.
_MAX_ROWS = 1 << 25


class NGram(ScalarIndex):
    """N-gram index: rows by trigram."""

    name = "NGRAM"
    label = "ngramindexdetails"
    type_url = INDEX_KINDS[label].type_url
    can_move = True

    @classmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values are text."""
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

    @cached_property
    def _file(self) -> IndexFile:
        return self.segment.file(FILE)

    @cached_property
    def _tokens(self) -> npt.NDArray[np.uint32]:
        result: npt.NDArray[np.uint32] = self._file.read(["tokens"])["tokens"].to_numpy()
        return result

    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return the rows with all trigrams of the texts that a matching value must contain."""
        if probe.operator == "is_null":
            return self._token_rows([_NULLS])
        needles = list(_needles(probe))
        trigrams = np.unique(
            np.concatenate([np.empty(0, np.int64), *(_trigrams([text])[0] for text in needles)])
        )
        return self._token_rows(trigrams.tolist()) if len(trigrams) else None

    def _token_rows(self, tokens: list[int]) -> RowSet | None:
        sets = []
        for token in tokens:
            position = int(np.searchsorted(self._tokens, token))
            if position == len(self._tokens) or self._tokens[position] != token:
                return RowSet()
            data = self._file.read(["posting_list"], position, position + 1)["posting_list"][0].as_py()
            sets.append(self._rows(data))
        common = reduce(lambda one, other: one & other, sets)
        if len(common) > _MAX_ROWS:
            return None
        return RowSet.from_addresses(np.array(common.to_array(), dtype=np.uint64))

    @classmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write the rows of each trigram; return file name -> size in bytes."""
        pairs = [np.empty((0, 2), np.uint64)]
        for texts, numbers in rows.pieces():
            tokens, owners = _trigrams(texts.to_pylist())
            entries = np.stack([tokens.astype(np.uint64), numbers[owners]], axis=1)
            absent = numbers[texts.is_null().to_numpy(zero_copy_only=False)]
            pairs.append(np.stack([np.full(len(absent), _NULLS, np.uint64), absent], axis=1))
            pairs.append(np.unique(entries, axis=0) if len(entries) else entries)
        ordered = np.unique(np.concatenate(pairs), axis=0)
        starts = np.flatnonzero(np.diff(ordered[:, 0], prepend=ordered[:1, 0] + np.uint64(1)))
        ends = [*starts[1:].tolist(), len(ordered)]
        path = f"{target.directory}/{FILE}"
        with IndexFileWriter(target.store, path, _SCHEMA, target.version) as writer:
            for first in range(0, len(starts), _RUN_TOKENS):
                part = starts[first : first + _RUN_TOKENS].tolist()
                lists = [
                    BitMap64(ordered[start:stop, 1].tolist()).serialize()
                    for start, stop in zip(part, ends[first : first + _RUN_TOKENS], strict=True)
                ]
                tokens = ordered[part, 0].astype(np.uint32)
                writer.write([pa.array(tokens), pa.array(lists, pa.binary())])
            return {FILE: writer.finish({})}

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite the rows of each trigram with current addresses; drop trigrams without rows."""
        path = f"{target.directory}/{FILE}"
        with IndexFileWriter(target.store, path, _SCHEMA, target.version) as writer:
            for start in range(0, self._file.num_rows, _RUN_TOKENS):
                table = self._file.read(_SCHEMA.names, start, start + _RUN_TOKENS)
                postings = [self._rows(data) for data in table["posting_list"].to_pylist()]
                sets = remap_sets([treemap_numbers(rows, remap.possible) for rows in postings], remap)
                kept_tokens = [number for number, rows in enumerate(sets) if len(rows)]
                if kept_tokens:
                    lists = [BitMap64(sets[number].tolist()).serialize() for number in kept_tokens]
                    tokens = table["tokens"].combine_chunks().take(pa.array(kept_tokens))
                    writer.write([tokens, pa.array(lists, pa.binary())])
            return {FILE: writer.finish({})}

    def _rows(self, data: bytes) -> BitMap64:
        try:
            return BitMap64.deserialize(data)
        except (ValueError, IndexError) as error:
            raise FormatError(f"undecodable rows of an n-gram: {error}", self._file.path) from error


def _needles(probe: ColumnPredicate) -> Iterator[str]:
    """Yield the texts that a matching value must contain."""
    if probe.operator not in ("contains", "starts_with", "ends_with", "like", "ilike", "="):
        return
    for literal in probe.literals:
        if isinstance(literal, str):
            is_pattern = probe.operator in ("like", "ilike")
            # Split at wildcards and at escape sequences: an escaped character is not used.
            yield from re.split(r"[%_]|\\.", literal) if is_pattern else [literal]


class _Letters(dict[int, str]):
    """The replacement of a letter: its ASCII form, or a space for a gap."""

    def __missing__(self, code: int) -> str:
        text = folded(chr(code)).lower()
        result = "".join(letter if letter.isascii() and letter.isalnum() else " " for letter in text)
        self[code] = result or " "
        return self[code]


_LETTERS = _Letters({0: "\0"})
_NUMBERS = np.zeros(256, np.int64)
_NUMBERS[ord("0") : ord("9") + 1] = np.arange(1, 11)
_NUMBERS[ord("a") : ord("z") + 1] = np.arange(11, 37)


def _trigrams(texts: list[str | None]) -> tuple[npt.NDArray[np.int64], Numbers]:
    """Return the trigram tokens of texts, and the index of the text that has each."""
    plain = "\0".join((text or "").replace("\0", " ") for text in texts).lower().translate(_LETTERS)
    data = np.frombuffer(plain.encode("ascii"), np.uint8)
    owners = np.cumsum(data == 0)
    numbers = _NUMBERS[data]
    if len(data) < 3:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    one, two, three = numbers[:-2], numbers[1:-1], numbers[2:]
    whole = (one > 0) & (two > 0) & (three > 0)
    tokens = (one * _BASE + two) * _BASE + three
    return tokens[whole], owners[:-2][whole]
