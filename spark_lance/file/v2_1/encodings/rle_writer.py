"""Writes Rle: runs of equal values, see rle.py for the bytes.

    chunk    buffer 0: the value of every run, buffer 1: a u8 length for each; runs end with their chunk, and
             those longer than 255 take several entries

(Lance file format, encodings: rle.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, Indices, flat
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["RunChunks", "describe_runs", "run_starts"]

_LONGEST = 255
_Words = npt.NDArray[Any]


def run_starts(words: _Words, most: float) -> Indices | None:
    """Return where the runs of equal words start, 0 included, or None if there are `most` of them or more.

    There is at least one word.
    """
    changed = words[1:] != words[:-1]
    if np.count_nonzero(changed) + 1 >= most:
        return None
    return np.concatenate([[0], np.flatnonzero(changed) + 1])


def describe_runs(bits: int) -> pb.CompressiveEncoding:
    """Return the description of runs of words of `bits` bits."""
    return pb.CompressiveEncoding(rle=pb.Rle(values=flat(bits), run_lengths=flat(8)))


@dataclass(frozen=True)
class RunChunks:
    """Unsigned words (of 8, 16, 32 or 64 bits) as runs."""

    words: _Words
    starts: Indices
    entries: Indices

    @classmethod
    def of(cls, words: _Words, starts: Indices) -> RunChunks:
        """Describe words (one or more) by the starts of their runs."""
        entries = np.zeros(len(starts) + 1, np.int64)
        np.cumsum(-(-np.diff(starts, append=len(words)) // _LONGEST), out=entries[1:])
        return cls(words, starts, entries)

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self.words)

    @property
    def nbytes(self) -> int:
        """Bytes of all entries if no chunk cut a run."""
        return int(self.entries[-1]) * (self.words.dtype.itemsize + 1)

    @property
    def description(self) -> pb.CompressiveEncoding:
        """Rle with Flat values."""
        return describe_runs(self.words.dtype.itemsize * 8)

    def cost(self, positions: Indices) -> Indices:
        """Return about how many bytes the runs that start before each position take."""
        whole: Indices = self.entries[np.searchsorted(self.starts, positions)]
        return whole * (self.words.dtype.itemsize + 1)

    def chunk(self, bounds: Indices) -> list[ChunkBuffer]:
        """Return the run values and the run lengths."""
        # Two sorted runs, which a stable sort merges; a run may start where a chunk does.
        starts = np.sort(np.concatenate([self.starts, bounds[:-1]]), kind="stable")
        starts = starts[np.append(True, starts[1:] != starts[:-1])]
        lengths = np.diff(starts, append=len(self.words))
        entries = -(-lengths // _LONGEST)
        ends = np.cumsum(entries)
        counts = np.full(int(ends[-1]), _LONGEST, np.uint8)
        counts[ends - 1] = lengths - (entries - 1) * _LONGEST
        values = np.repeat(self.words[starts], entries)
        cuts = np.append(0, ends)[np.searchsorted(starts, bounds)]
        return [
            ChunkBuffer(values.view(np.uint8), cuts * self.words.dtype.itemsize),
            ChunkBuffer(counts, cuts),
        ]
