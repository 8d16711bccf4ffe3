"""Row addresses: `fragment id << 32 | physical row`, uint64.

Stable row ids are plain numbers. The functions here that take apart or group are for addresses alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.uint32]

_BITS = 32
_SHIFT = np.uint64(_BITS)
# No fragment has more rows.
FRAGMENT_ROWS = 1 << _BITS


def address_of(fragment: int, offset: int) -> int:
    """Return the address of one row."""
    return fragment << _BITS | offset


def split_address(address: int) -> tuple[int, int]:
    """Return the fragment and the physical row of one address."""
    return address >> _BITS, address & (FRAGMENT_ROWS - 1)


def row_addresses(fragment: int, offsets: npt.NDArray[np.integer[Any]]) -> Addresses:
    """Return the addresses of physical rows of a fragment."""
    addresses: Addresses = offsets.astype(np.uint64) | np.uint64(fragment << _BITS)
    return addresses


def fragments_of(addresses: Addresses) -> Addresses:
    """Return the fragment of each address."""
    fragments: Addresses = addresses >> _SHIFT
    return fragments


def offsets_of(addresses: Addresses) -> Offsets:
    """Return the physical row of each address."""
    return addresses.astype(np.uint32)


def runs_by_fragment(addresses: Addresses) -> Iterator[tuple[int, slice]]:
    """Yield the runs of addresses of one fragment, and the fragment of each."""
    fragments = fragments_of(addresses)
    bounds = [0, *(np.flatnonzero(np.diff(fragments)) + 1).tolist(), len(fragments)]
    for start, stop in pairwise(bounds):
        if stop > start:
            yield int(fragments[start]), slice(start, stop)
