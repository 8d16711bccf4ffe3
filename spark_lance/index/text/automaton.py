"""The set of words of an index part as an automaton, with exact lookup that reads only the nodes of one word.

The fst automaton stores a set of words with numbers (like the `fst` library, version 3):

    u64 version, u64 kind
    nodes, each read backwards from its address; an arc points to a node at a lower address
    u64 number of words, u64 address of the root
    u32 checksum (version 3)

The two upper bits of the byte at a node's address are its form:

    11  one arc, without output, to the node just below this one; the lower bits are the arc's byte
    10  one arc; the lower bits are its byte; below: sizes, target, output
    01, 00  several arcs (01: the node is final); the lower bits are their number; below: sizes, (an index of
        256 bytes if there are more than 32 arcs), the arcs' bytes, targets, outputs, the output of a final
        node

Lower bits of 0 mean that a separate byte follows below. As an arc's byte, the lower bits are an index into
`_COMMON`, from 1. The upper half of `sizes` is the number of bytes of a target, the lower half of an output.
Targets are distances from the end of the node; 0 is the final node without arcs. The arcs of a node are in
descending order of their bytes. The number of a word is the sum of the outputs on its path. (Lance index
format, tokens.)
"""

from __future__ import annotations

import struct

from spark_lance.errors import FormatError, UnsupportedFormatError

# The bytes of arcs by their short form. Only the first 63 have a short form.
_COMMON = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHGWUV,YKJZXQ"
_HEADER = 16
_INDEXED = 32
_LENGTH = struct.Struct("<Q")


class WordAutomaton:
    """Words with their numbers.

    Args:
        data: the stored bytes.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the version is unknown.
    """

    def __init__(self, data: bytes) -> None:
        try:
            (version,) = _LENGTH.unpack_from(data)
            if version not in (1, 2, 3):
                raise UnsupportedFormatError(f"a set of words of version {version}")
            end = len(data) - (4 if version == 3 else 0)
            self._count, self._root = (_LENGTH.unpack_from(data, end - before)[0] for before in (16, 8))
        except struct.error as error:
            raise FormatError(f"undecodable set of words: {error}") from error
        self._data = data

    @property
    def nbytes(self) -> int:
        """Approximate memory size in bytes."""
        return len(self._data)

    def words(self) -> dict[bytes, int]:
        """Return all words with their numbers.

        Raises:
            FormatError: the bytes are damaged.
        """
        try:
            return _read_automaton(self._data, self._root, self._count)
        except IndexError as error:
            raise FormatError(f"undecodable set of words: {error}") from error

    def number(self, word: str) -> int | None:
        """Return the number of a word; None if the word does not exist.

        Raises:
            FormatError: a node on the path of the word is damaged.
        """
        address, total = self._root, 0
        try:
            for byte in word.encode("utf-8", "surrogatepass"):
                if address == 0:
                    return None
                _, arcs = _read_node(self._data, address, byte)
                arc = next((arc for arc in arcs if arc[0] == byte), None)
                if arc is None:
                    return None
                _, address, output = arc
                total += output
            final = 0 if address == 0 else _read_node(self._data, address, -1)[0]
        except IndexError as error:
            raise FormatError(f"undecodable set of words: {error}") from error
        return None if final is None else total + final


def _read_automaton(data: bytes, root: int, count: int) -> dict[bytes, int]:
    words: dict[bytes, int] = {}
    pending = [(root, b"", 0)]
    steps = 0
    while pending:
        address, word, total = pending.pop()
        steps += 1
        if steps > 64 * (len(data) + count):
            raise FormatError("a set of words without end")
        if address == 0:
            words[word] = total
            continue
        final, arcs = _read_node(data, address)
        if final is not None:
            words[word] = total + final
        pending += [(target, word + bytes([byte]), total + output) for byte, target, output in arcs]
    if len(words) != count:
        raise FormatError(f"a set of {count} words has {len(words)}")
    return words


def _read_node(
    data: bytes, address: int, only_byte: int | None = None
) -> tuple[int | None, list[tuple[int, int, int]]]:
    """Return the output of a node (None if not final), and its arcs (byte, target, output).

    With `only_byte`, of several arcs only the arc of this byte is read.
    """
    if not _HEADER <= address < len(data):
        raise FormatError(f"a node at {address} of {len(data)} bytes")
    form, low = data[address] >> 6, data[address] & 63
    offset = address
    if form >= 2:
        if low:
            byte = _COMMON[low - 1]
        else:
            offset -= 1
            byte = data[offset]
        if form == 3:
            return None, [(byte, offset - 1, 0)]
        sizes = data[offset - 1]
        target_size, output_size = sizes >> 4, sizes & 15
        offset -= 1 + target_size
        distance = _read_number(data, offset, target_size)
        offset -= output_size
        output = _read_number(data, offset, output_size)
        return None, [(byte, offset - distance if distance else 0, output)]
    count = low
    if not count:
        offset -= 1
        count = 256 if data[offset] == 1 else data[offset]
    sizes = data[offset - 1]
    target_size, output_size = sizes >> 4, sizes & 15
    offset -= 1 + (256 if count > _INDEXED else 0)
    bytes_at = offset - count
    targets_at = bytes_at - count * target_size
    outputs_at = targets_at - count * output_size
    final = None
    end = outputs_at
    if form == 1:
        end -= output_size
        final = _read_number(data, end, output_size)
    arcs = []
    # The first arc is at the highest address.
    if only_byte is None:
        positions = range(count)
    else:
        place = -1 if only_byte < 0 or bytes_at < 0 else data.find(only_byte, bytes_at, bytes_at + count)
        positions = range(0) if place < 0 else range(bytes_at + count - 1 - place, bytes_at + count - place)
    for i in positions:
        byte = data[bytes_at + count - 1 - i]
        distance = _read_number(data, targets_at + (count - 1 - i) * target_size, target_size)
        output = _read_number(data, outputs_at + (count - 1 - i) * output_size, output_size)
        arcs.append((byte, end - distance if distance else 0, output))
    return final, arcs


def _read_number(data: bytes, start: int, size: int) -> int:
    if start < 0:
        raise FormatError("a node reaches beyond the beginning of its set of words")
    return int.from_bytes(data[start : start + size], "little")
