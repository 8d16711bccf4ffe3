"""The compiled kernels beside their numpy twins, and with garbage beside memory that must not be touched."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError
from spark_lance.file.base import fsst
from spark_lance.file.base.fsst import SYMBOL_TABLE_SIZE, decode_fsst
from spark_lance.file.kernels import FSST_MISSING, FSST_ROOM, accelerate
from spark_lance.file.kernels.accelerate import SAVED, Accelerator
from spark_lance.file.v2_1.encodings import bitpacking

pytest.importorskip("numba")

ROOT = Path(__file__).resolve().parents[3]
Bytes = npt.NDArray[np.uint8]


@contextmanager
def mode(name: str) -> Iterator[None]:
    """Decode with or without compiled kernels."""
    before = accelerate._process[:]
    accelerate._process[:] = [Accelerator(name)]
    try:
        yield
    finally:
        accelerate._process[:] = before


def kernel(name: str) -> Any:
    result = Accelerator("on").kernel(name, 0)
    assert result is not None
    return result


class Guarded:
    """Bytes that end where a page begins that nobody may touch: reading behind them ends the process."""

    def __init__(self, content: bytes) -> None:
        size = max(1, -(-len(content) // mmap.PAGESIZE)) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, size + mmap.PAGESIZE)
        whole = np.frombuffer(self._map, dtype=np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        address = ctypes.c_void_p(whole.ctypes.data + size)
        if libc.mprotect(address, ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self.data: Bytes = whole[size - len(content) : size]
        self.data[:] = np.frombuffer(content, dtype=np.uint8)


def symbol_table(symbols: list[bytes]) -> bytes:
    head = bytes([len(symbols), 0, 0, 1]) + b"TSSF"
    body = b"".join(symbol.ljust(8, b"\xee") for symbol in symbols)
    return (head + body + bytes(map(len, symbols))).ljust(SYMBOL_TABLE_SIZE, b"\0")


SYMBOLS = st.lists(st.binary(min_size=1, max_size=8), min_size=1, max_size=255)
# Damaged codes are mostly 255, or codes of a table that is shorter than they think.
CODES = st.lists(
    st.one_of(st.binary(max_size=40), st.lists(st.sampled_from([0, 0, 1, 254, 255]), max_size=40).map(bytes)),
    max_size=12,
)


def outcome(table: bytes, offsets: npt.NDArray[Any], data: Bytes) -> tuple[list[int], bytes] | str:
    try:
        ends, out = decode_fsst(table, offsets, data)
    except FormatError:
        return "damaged"
    return ends.tolist(), out.tobytes()


@given(symbols=SYMBOLS, strings=CODES, lead=st.binary(max_size=9), dtype=st.sampled_from(["i4", "i8"]))
def test_fsst_does_as_its_twin(symbols: list[bytes], strings: list[bytes], lead: bytes, dtype: str) -> None:
    data = np.frombuffer(lead + b"".join(strings), dtype=np.uint8)
    offsets = np.cumsum([len(lead), *map(len, strings)]).astype(dtype)
    with mode("off"):
        expected = outcome(symbol_table(symbols), offsets, data)
    with mode("on"):
        assert outcome(symbol_table(symbols), offsets, data) == expected


@given(
    symbols=SYMBOLS,
    tokens=st.lists(st.tuples(st.booleans(), st.integers(0, 254)), min_size=1),
    times=st.integers(1, 99),
)
def test_fsst_grows_when_the_sample_misled(
    symbols: list[bytes], tokens: list[tuple[bool, int]], times: int
) -> None:
    # The sample sees few of the codes, and those are short.
    codes = b"".join(b"\xff" + bytes([k]) if literal else bytes([k % len(symbols)]) for literal, k in tokens)
    strings = [codes * times, b"", codes]
    data = np.frombuffer(b"".join(strings), dtype=np.uint8)
    offsets = np.cumsum([0, *map(len, strings)]).astype(np.int32)
    with mode("off"):
        expected = outcome(symbol_table(symbols), offsets, data)
    with mode("on"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fsst, "_SAMPLES", 1)
        patch.setattr(fsst, "_SPARE", 0)
        assert outcome(symbol_table(symbols), offsets, data) == expected


@given(
    codes=st.binary(max_size=200),
    bounds=st.lists(
        st.one_of(st.integers(-3, 203), st.integers(-(2**31), 2**31 - 1)), min_size=1, max_size=9
    ),
    count=st.integers(0, 255),
    room=st.integers(0, 600),
    start=st.integers(0, 10),
    at=st.integers(0, 700),
)
def test_fsst_stays_inside(
    codes: bytes, bounds: list[int], count: int, room: int, start: int, at: int
) -> None:
    words = np.full(256, 0x6161616161616161, dtype=np.uint64)
    sizes = np.full(256, FSST_MISSING, dtype=np.uint8)
    sizes[:count] = 8
    out = Guarded(bytes(room + FSST_ROOM)).data
    ends = np.zeros(len(bounds), dtype=np.int32)
    strings = np.array(bounds, dtype=np.int32)
    data = Guarded(codes).data
    done = kernel("fsst")(data, strings, words, sizes, start, at, out, ends)
    assert done < len(bounds) or done == start
    assert int(ends.max()) <= room + FSST_ROOM


@given(
    st.sampled_from([8, 16, 32, 64]).flatmap(
        lambda bits: st.tuples(st.just(bits), st.lists(st.integers(0, bits), min_size=1, max_size=5))
    ),
    st.integers(0, 9),
    st.integers(0, 2**32 - 1),
)
def test_unpack_does_as_its_twin(shape: tuple[int, list[int]], lead: int, seed: int) -> None:
    bits, widths = shape
    data = np.frombuffer(np.random.default_rng(seed).bytes(lead + 128 * sum(widths)), dtype=np.uint8)
    starts = lead + np.cumsum([0, *widths[:-1]], dtype=np.int64) * 128
    out = np.ones(len(widths) * 1024, dtype=f"<u{bits // 8}")
    assert kernel("unpack")(data, starts, np.array(widths, dtype=np.int64), bits, out.view(np.uint64)) == 0
    for width, start, block in zip(widths, starts, out.reshape(-1, 1024), strict=True):
        words = data[start : start + 128 * width].tobytes()
        packed = np.frombuffer(words, dtype=out.dtype).reshape(1, -1)
        with mode("off"):
            assert bitpacking.unpack(packed, width)[0].tolist() == block.tolist()
        with mode("on"):
            assert bitpacking.unpack(packed, width)[0].tolist() == block.tolist()


ANY_INT64 = st.integers(-(2**63), 2**63 - 1)


@given(
    bits=st.one_of(st.sampled_from([8, 16, 32, 64]), st.sampled_from([8, 16, 32, 64]), ANY_INT64),
    blocks=st.lists(st.tuples(st.integers(0, 64), st.integers(0, 900)), min_size=1, max_size=4),
    short=st.integers(-2, 129),
    narrow=st.integers(-2, 2),
    damage=st.one_of(st.none(), st.tuples(st.booleans(), st.integers(0, 3), ANY_INT64)),
)
def test_unpack_stays_inside(
    bits: int,
    blocks: list[tuple[int, int]],
    short: int,
    narrow: int,
    damage: tuple[bool, int, int] | None,
) -> None:
    known = bits in (8, 16, 32, 64)
    widths = [min(width, bits) if known else width for width, _ in blocks]
    starts = [start for _, start in blocks]
    # About as long as it has to be.
    size = max(0, max(s + 128 * w for s, w in zip(starts, widths, strict=True)) - short)
    room = max(0, len(blocks) * 16 * (bits if known else 64) - narrow)
    if damage is not None:
        of_widths, place, number = damage
        (widths if of_widths else starts)[place % len(blocks)] = number
    data = Guarded(bytes(size)).data
    out = Guarded(bytes(8 * room)).data.view(np.uint64)
    at, sizes = np.array(starts, dtype=np.int64), np.array(widths, dtype=np.int64)
    status = kernel("unpack")(data, at, sizes, bits, out)
    fits = known and all(
        0 <= width <= bits and start >= 0 and start + 128 * width <= size
        for start, width in zip(starts, widths, strict=True)
    )
    assert (status == 0) == (fits and len(starts) * 16 * bits <= room)


def test_every_kernel_has_a_price() -> None:
    module = __import__("spark_lance.file.kernels.numba_kernels", fromlist=["KERNELS"])
    assert module.KERNELS.keys() == SAVED.keys()


def test_compiled_code_finds_a_folder_of_its_own(tmp_path: Path) -> None:
    # Neither beside the package nor in the user's cache, as in a container with a read-only file system.
    program = (
        "from numba.core import caching\n"
        "def never(*_): return None\n"
        "for each in caching.CacheImpl._locator_classes:\n"
        "    if each.__name__ != 'UserProvidedCacheLocator': each.from_function = never\n"
        "from spark_lance.file.kernels.numba_kernels import KERNELS, _own_folder\n"
        "print(_own_folder())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    folder = Path(done.stdout.strip())
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o077 == 0
    assert list(folder.rglob("*.nbc"))
