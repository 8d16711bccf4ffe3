"""Reading a set of words with numbers that is stored as an automaton (of the kind of the `fst` library,
version 3).

    u64 version, u64 kind
    nodes, each read backwards from its address; an arc leads to a node at a lower address
    u64 number of words, u64 address of the root
    u32 checksum (version 3)

The byte at a node's address tells its form by the two upper bits:

    11  one arc, without output, to the node that ends right below this one; the lower bits are the arc's byte
    10  one arc; the lower bits are its byte; below: sizes, target, output
    01, 00  several arcs; the node is final with 01; the lower bits are their number; below: sizes, (an index
        of 256 bytes if there are more than 32 arcs), the arcs' bytes, targets, outputs, the output of a final
        node

Lower bits of 0 mean that a byte of its own follows below. Where they are the byte of an arc they count in
`_COMMON`, from 1. `sizes` has the bytes of a target in its upper and of an output in its lower half. Targets
are distances from the end of the node, 0 is the final node without arcs. Arcs of a node lie in descending
order of their bytes. The number of a word is the sum of the outputs on its way. (Lance index format, tokens.)
"""

from __future__ import annotations

import struct

from spark_lance.errors import FormatError, UnsupportedFormatError

__all__ = ["read_words"]

# The byte of an arc by its short form; only the first 63 have one.
_COMMON = b"te/oasripcnw.hlm-du012g=:bf3y5&_4v9678k%?xCDASFIBEjPTzRNM+LOqHGWUV,YKJZXQ"
_HEADER = 16
_INDEXED = 32
_LENGTH = struct.Struct("<Q")


def read_words(data: bytes) -> dict[bytes, int]:
    """Return all words of an automaton with their numbers.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: another version.
    """
    try:
        (version,) = _LENGTH.unpack_from(data)
        if version not in (1, 2, 3):
            raise UnsupportedFormatError(f"a set of words of version {version}")
        end = len(data) - (4 if version == 3 else 0)
        count, root = _LENGTH.unpack_from(data, end - 16)[0], _LENGTH.unpack_from(data, end - 8)[0]
        return _walk(data, root, count)
    except (struct.error, IndexError) as error:
        raise FormatError(f"undecodable set of words: {error}") from error


def _walk(data: bytes, root: int, count: int) -> dict[bytes, int]:
    words: dict[bytes, int] = {}
    waiting = [(root, b"", 0)]
    steps = 0
    while waiting:
        address, word, total = waiting.pop()
        steps += 1
        if steps > 64 * (len(data) + count):
            raise FormatError("a set of words without end")
        if address == 0:
            words[word] = total
            continue
        final, arcs = _node(data, address)
        if final is not None:
            words[word] = total + final
        waiting += [(target, word + bytes([byte]), total + output) for byte, target, output in arcs]
    if len(words) != count:
        raise FormatError(f"a set of {count} words has {len(words)}")
    return words


def _node(data: bytes, address: int) -> tuple[int | None, list[tuple[int, int, int]]]:
    """Return the output of a node if it is final, and its arcs: (byte, target, output)."""
    if not _HEADER <= address < len(data):
        raise FormatError(f"a node at {address} of {len(data)} bytes")
    form, low = data[address] >> 6, data[address] & 63
    place = address
    if form >= 2:
        if low:
            byte = _COMMON[low - 1]
        else:
            place -= 1
            byte = data[place]
        if form == 3:
            return None, [(byte, place - 1, 0)]
        sizes = data[place - 1]
        to, out = sizes >> 4, sizes & 15
        place -= 1 + to
        distance = _number(data, place, to)
        place -= out
        output = _number(data, place, out)
        return None, [(byte, place - distance if distance else 0, output)]
    count = low
    if not count:
        place -= 1
        count = 256 if data[place] == 1 else data[place]
    sizes = data[place - 1]
    to, out = sizes >> 4, sizes & 15
    place -= 1 + (256 if count > _INDEXED else 0)
    bytes_at = place - count
    targets_at = bytes_at - count * to
    outputs_at = targets_at - count * out
    final = None
    end = outputs_at
    if form == 1:
        end -= out
        final = _number(data, end, out)
    arcs = []
    for i in range(count):
        # The first arc lies highest.
        byte = data[bytes_at + count - 1 - i]
        distance = _number(data, targets_at + (count - 1 - i) * to, to)
        output = _number(data, outputs_at + (count - 1 - i) * out, out)
        arcs.append((byte, end - distance if distance else 0, output))
    return final, arcs


def _number(data: bytes, start: int, size: int) -> int:
    if start < 0:
        raise FormatError("a node reaches beyond the beginning of its set of words")
    return int.from_bytes(data[start : start + size], "little")
