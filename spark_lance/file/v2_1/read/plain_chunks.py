"""Compressed chunks of mini-block pages that are asked for again and again, kept as they were before.

Single values of a compressed chunk cost all of the chunk. Look-ups that come back to a page of a local file
find the chunks that others have decompressed; the first one keeps nothing, as most pages are read once. Only
values of one width are kept: it tells where those of each chunk are.
"""

from __future__ import annotations

import threading

import numpy as np

from spark_lance.file.source import PageSource
from spark_lance.file.v2_1.chunks import Ints, Ranges, exclusive_sum
from spark_lance.file.v2_1.encodings.general import decompress
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["PlainChunks", "kept_chunks"]

# Pages of more bytes are not kept.
_LARGEST = 16 << 20


class PlainChunks:
    """The decompressed chunks of one page, as far as they are known. Threads wait for each other.

    Args:
        counts: values of each chunk.
        width: bytes of a value.
    """

    def __init__(self, counts: Ints, width: int) -> None:
        self._sizes = counts * width
        bounds = exclusive_sum(self._sizes)
        self._starts = bounds[:-1]
        # Memory that is never written to is none.
        self._data = np.empty(int(bounds[-1]), np.uint8)
        self._known = np.zeros(len(counts), np.bool_)
        self._visited = False
        self._lock = threading.Lock()

    def get(self, chosen: Ints, compression: pb.BufferCompression, pieces: Ranges) -> Ranges:
        """Return chunks as they were before they were compressed.

        Args:
            chosen: their ascending numbers in the page.
            compression: how they are compressed.
            pieces: their compressed bytes.

        Raises:
            FormatError, UnsupportedFormatError: as `decompress`.
        """
        with self._lock:
            if not self._visited:
                self._visited = True
                return decompress(compression, pieces)
            missing = ~self._known[chosen]
            if missing.any() and not self._add(chosen[missing], compression, pieces.select(missing)):
                return decompress(compression, pieces)
        return Ranges(self._data, self._starts[chosen], self._sizes[chosen])

    def _add(self, chosen: Ints, compression: pb.BufferCompression, pieces: Ranges) -> bool:
        """Keep chunks that are not known yet; False if one has another size than its values have."""
        plain = decompress(compression, pieces)
        if not np.array_equal(plain.sizes, self._sizes[chosen]):
            return False
        # Chunks that follow each other in the page do so here, and there.
        firsts = np.flatnonzero(np.diff(chosen, prepend=-2) != 1)
        ends = np.append(firsts[1:], len(chosen)) - 1
        spans = zip(plain.starts[firsts].tolist(), self._starts[chosen[firsts]].tolist(), strict=True)
        sizes = self._starts[chosen[ends]] + self._sizes[chosen[ends]] - self._starts[chosen[firsts]]
        for (source, target), size in zip(spans, sizes.tolist(), strict=True):
            self._data[target : target + size] = plain.data[source : source + size]
        self._known[chosen] = True
        return True


_KEPT: CacheSection[PlainChunks] = CacheSection("decompressed chunks", CACHE, share=1 / 8)


def kept_chunks(source: PageSource, offset: int, counts: Ints, width: int | None) -> PlainChunks | None:
    """Return what is kept of the compressed chunks of a page; None if nothing ever is.

    Args:
        source: the file.
        offset: where the page's chunks begin in it.
        counts: values of each chunk.
        width: bytes of a decompressed value, None if they differ.
    """
    size = int(counts.sum()) * (width or 0)
    if not 0 < size <= _LARGEST or source.state is None:
        return None
    return _KEPT.get((source.state, offset), lambda: PlainChunks(counts, width or 0), lambda _: size)
