"""Finds the marks of JSON texts, `{}[],:` outside strings, for all texts of an array together.

    {"a": 1, "b": [true]}       marks  {  :  ,  :  [  ]  }
                                gaps   -  "a"  1  "b"  -  true  -  -

Before the first mark, between two marks, and after the last mark is a gap: a key, a value that is not a
container, or nothing. Spaces around it are ignored. Two texts with the same marks and keys have the same
shape.

Texts with backslashes, an odd number of quotes, or control characters in strings are not scanned. The content
of gaps is not checked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Bools

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_SPACES = b" \t\n\r"
_NONE, _MARK, _QUOTES, _CONTROL, _ESCAPE = range(5)
_CLASSES = np.zeros(256, np.uint8)
_CLASSES[:32] = _CONTROL
_CLASSES[list(b"{}[],:")] = _MARK
_CLASSES[_QUOTE], _CLASSES[_BACKSLASH] = _QUOTES, _ESCAPE
_IS_SPACE = np.zeros(256, np.bool_)
_IS_SPACE[list(_SPACES)] = True
# Texts with more consecutive spaces are not scanned.
_MOST_SPACES = 64


@dataclass(frozen=True)
class TokenOffsets:
    """The gaps of texts with the same marks.

    Attributes:
        starts, stops: byte ranges of the gaps without surrounding spaces, one row per gap, one column per
            text.
        quotes: number of quotes in each text.
    """

    starts: Places
    stops: Places
    quotes: Places


class TextScan:
    """The marks of texts.

    Args:
        texts: strings without nulls, less than 2 GiB.
    """

    def __init__(self, texts: pa.Array) -> None:
        wide = pa.types.is_large_string(texts.type)
        offsets = np.frombuffer(texts.buffers()[1] or b"", np.int64 if wide else np.int32)
        offsets = offsets[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
        first, last = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        # Only the bytes of these texts, not of the whole column, so that positions are small numbers.
        self.data: Bytes = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[first:last]
        offsets -= first
        self._starts, self._stops = offsets[:-1], offsets[1:]
        classes = _CLASSES[self.data]
        places = np.flatnonzero(classes != _NONE)
        kinds = classes[places]
        bounds = np.searchsorted(places, offsets)
        quotes = np.zeros(len(places) + 1, np.int64)
        np.cumsum(kinds == _QUOTES, out=quotes[1:])
        own = quotes[bounds]
        self._quotes = np.diff(own)
        self._plain = self._quotes % 2 == 0
        inside = (quotes[:-1] & 1).astype(np.bool_)
        if not self._plain.all():
            inside ^= np.repeat((own[:-1] & 1).astype(np.bool_), np.diff(bounds))
        bad = (kinds == _ESCAPE) | (inside & (kinds == _CONTROL))
        if bad.any():
            self._plain[np.searchsorted(offsets, places[bad], "right") - 1] = False
        self._marks = places[(kinds == _MARK) & ~inside]
        self._bounds = np.searchsorted(self._marks, offsets)

    def gaps(self, rows: Places, marks: bytes) -> tuple[Bools, TokenOffsets]:
        """Return which texts were scanned and have exactly these marks, and their gaps.

        Args:
            rows: numbers of the texts.
            marks: the marks, in order.
        """
        firsts = self._bounds[rows]
        same = self._plain[rows] & (self._bounds[rows + 1] - firsts == len(marks))
        some, here = rows[same], firsts[same]
        starts = np.empty((len(marks) + 1, len(some)), np.int64)
        stops = np.empty(starts.shape, np.int64)
        fits = np.ones(len(some), np.bool_)
        for number, mark in enumerate(marks):
            stops[number] = self._marks[here + number]
            fits &= self.data[stops[number]] == mark
        np.add(stops[:-1], 1, out=starts[1:])
        starts[0], stops[-1] = self._starts[some], self._stops[some]
        fits[self._strip(starts, stops)] = False
        if not fits.all():
            same[np.flatnonzero(same)[~fits]] = False
            starts, stops, some = starts[:, fits], stops[:, fits], some[fits]
        return same, TokenOffsets(starts, stops, self._quotes[some])

    def _strip(self, starts: Places, stops: Places) -> Places:
        """Strip the spaces around gaps, and return the columns with too many spaces."""
        first, last = starts.ravel(), stops.ravel()
        left = []
        for bounds, before, step in ((first, 0, 1), (last, 1, -1)):
            here = np.flatnonzero(first < last)
            for _ in range(_MOST_SPACES):
                here = here[_IS_SPACE[self.data[bounds[here] - before]]]
                if not len(here):
                    break
                bounds[here] += step
                here = here[first[here] < last[here]]
            left.append(here % max(1, starts.shape[1]))
        return np.concatenate(left)

    def slots(self, starts: Places, stops: Places) -> pa.Array:
        """Return the bytes of ascending ranges as binary values, each followed by the bytes after it."""
        offsets = np.empty(2 * len(starts) + 1, np.int32)
        offsets[0:-1:2], offsets[1::2] = starts, stops
        offsets[-1] = stops[-1] if len(stops) else 0
        return pa.Array.from_buffers(
            pa.binary(), 2 * len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(self.data)]
        )
