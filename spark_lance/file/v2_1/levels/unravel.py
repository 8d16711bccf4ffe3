"""Converts repetition and definition levels to Arrow validity and offsets.

A page of a nested column has one *level* per leaf slot or gap: a repetition level that marks where a new list
starts, and a definition level that marks what is null or empty. `layers` describe the nesting,
**innermost first**: one item layer per leaf or struct (and per fixed-size list of structs), one list layer
per list or map.

Definition numbers are assigned layer by layer from 1: a nullable item takes one, a nullable or an emptyable
list one, a list that is both takes two (null, then empty). 0 = all valid; a higher number belongs to an outer
layer. Repetition 0 = next item of the innermost list. Repetition k = a new list starts k list layers further
out. A row starts with the number of list layers. (Both are the reverse of Parquet.)

Example, list<int> with nullable items and lists that may be null or empty: layers [NULLABLE_ITEM,
NULL_AND_EMPTY_LIST], so 1 = null item, 2 = null list, 3 = empty list:

    rows   [7, null]  null  []  [8]
    rep     1   0      1    1    1
    def     0   1      2    3    0

A level is *visible*, that is, it has a value slot, unless it is a null or empty list: def <= the highest
number of the layers before the first list layer. (Lance file format, levels and layers.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.buffers import pack_bits
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.base.chunks import Bytes
from spark_lance.proto import encodings21_pb2 as pb

Level = npt.NDArray[Any]

_KINDS: dict[int, tuple[bool, bool, bool]] = {
    # kind: (is a list, may be null, may be empty)
    pb.REPDEF_ALL_VALID_ITEM: (False, False, False),
    pb.REPDEF_NULLABLE_ITEM: (False, True, False),
    pb.REPDEF_ALL_VALID_LIST: (True, False, False),
    pb.REPDEF_NULLABLE_LIST: (True, True, False),
    pb.REPDEF_EMPTYABLE_LIST: (True, False, True),
    pb.REPDEF_NULL_AND_EMPTY_LIST: (True, True, True),
}


@dataclass(frozen=True)
class Layer:
    """A layer and its definition numbers.

    Attributes:
        below: highest number of the layers inside this one.
        null, empty: numbers for null and empty in this layer; 0 if it cannot be null or empty.
            upper: highest number up to and including this layer.
    """

    is_list: bool
    below: int
    null: int
    empty: int

    @property
    def upper(self) -> int:
        """Highest number taken up to and including this layer."""
        return max(self.below, self.null, self.empty)


def number_layers(kinds: Sequence[int]) -> list[Layer]:
    """Return the layers with their definition numbers.

    Raises:
        UnsupportedFormatError: a kind of layer is unknown.
    """
    return list(_numbered(tuple(kinds)))


@lru_cache(1024)
def _numbered(kinds: tuple[int, ...]) -> list[Layer]:
    layers: list[Layer] = []
    base_level = 0
    for kind in kinds:
        if kind not in _KINDS:
            raise UnsupportedFormatError(f"layer kind {kind} is not supported")
        is_list, nullable, emptyable = _KINDS[kind]
        null = base_level + 1 if nullable else 0
        empty = base_level + nullable + 1 if emptyable else 0
        layers.append(Layer(is_list, base_level, null, empty))
        base_level = layers[-1].upper
    return layers


@dataclass(frozen=True)
class Levels:
    """The levels of a page.

    Attributes:
        layers: innermost first.
        rep, definition: unsigned integers, one per level; None = all 0 (and, for rep, no lists).
    """

    layers: list[Layer]
    rep: Level | None
    definition: Level | None

    @property
    def max_visible(self) -> int:
        """Highest definition number of a level that has a value slot."""
        return next((layer.below for layer in self.layers if layer.is_list), self.max_definition)

    @property
    def max_definition(self) -> int:
        """Highest definition number."""
        return self.layers[-1].upper if self.layers else 0

    @property
    def max_rep(self) -> int:
        """Number of list layers."""
        return sum(layer.is_list for layer in self.layers)

    def check(self) -> None:
        """Check that the levels fit the layers and each other.

        Raises:
            FormatError: they do not fit.
        """
        rep, definition = self.rep, self.definition
        if (rep is None) != (self.max_rep == 0):
            raise FormatError(f"{self.max_rep} list layers do not fit the page's repetition levels")
        if rep is not None and definition is not None and len(rep) != len(definition):
            raise FormatError(f"{len(rep)} repetition levels do not fit {len(definition)} definition levels")
        if rep is not None and len(rep) and int(rep.max()) > self.max_rep:
            raise FormatError(f"a repetition level is above {self.max_rep}")
        if definition is not None and len(definition) and int(definition.max()) > self.max_definition:
            raise FormatError(f"a definition level is above {self.max_definition}")

    def visible_count(self, without_levels: int) -> int:
        """Return the number of value slots; a page without levels has `without_levels`."""
        if self.definition is not None:
            if self.max_visible >= self.max_definition:
                return len(self.definition)
            return int(np.count_nonzero(self.definition <= self.max_visible))
        return without_levels if self.rep is None else len(self.rep)

    def unraveler(self, count: int) -> Unraveler:
        """Return an unraveler that walks from the leaf, which has `count` value slots, to the rows."""
        return Unraveler(self, count)


class Unraveler:
    """Walks the layers from the inside out, consuming levels.

    `count` is the number of items of the last layer, which is the length of the array built so far.
    """

    def __init__(self, levels: Levels, count: int) -> None:
        """Start at the leaf, which has `count` value slots."""
        self.count = count
        self._layers = levels.layers
        self._next = 0
        self._rep = levels.rep
        # The levels where the lists of the last list layer start; these remain in `_rep`.
        self._heads: npt.NDArray[np.intp] | None = None
        self._definition = levels.definition
        self._items: Level | None = None

    def item(self) -> Bytes | None:
        """Take an item layer (leaf, struct, fixed-size list of structs): its validity bitmap or None."""
        layer = self._next_layer(is_list=False)
        if layer.null == 0 or self._definition is None:
            return None
        items = self._item_levels()
        if len(items) != self.count:
            raise FormatError(f"{len(items)} levels do not fit {self.count} items")
        return pack_bits(items < layer.null)

    def list(self) -> tuple[npt.NDArray[np.int64], Bytes | None]:
        """Take a list layer: its int64 offsets, one more than lists, and its validity bitmap or None."""
        layer = self._next_layer(is_list=True)
        rep, definition = self._starts(), self._definition
        # Searching in flags is several times faster than in numbers.
        heads = np.flatnonzero(rep != 0)
        if len(rep) and (len(heads) == 0 or heads[0] != 0):
            raise FormatError("the first level of a page does not start a list")
        self._heads = heads
        offsets = np.empty(len(heads) + 1, dtype=np.int64)
        starts, total = offsets[:-1], len(rep)
        validity: Bytes | None = None
        self._items = None
        starts[:] = heads
        if definition is not None:
            self._definition = definition = definition[heads]
            childless = definition > layer.below
            missing = np.flatnonzero(childless)
            if len(missing):
                last = missing[-1] == len(heads) - 1
                inner = missing[:-1] if last else missing
                followed = bool((heads[inner + 1] - heads[inner] != 1).any())
                if followed or (last and heads[-1] != len(rep) - 1):
                    raise FormatError("a null or empty list is followed by items")
                np.cumsum(childless, out=starts)
                np.subtract(heads, starts, out=starts)
                starts += childless
                total -= len(missing)
            present = self._item_levels()
            if len(present) != len(starts):
                offsets = np.append(starts[definition <= self._max_present()], 0)
            if layer.null or self._max_present() > layer.upper:
                null = present > layer.upper
                if layer.null:
                    null |= present == layer.null
                if bool(null.any()):
                    validity = pack_bits(~null)
        if total != self.count:
            raise FormatError(f"lists of {total} items do not fit {self.count} items")
        self.count = len(offsets) - 1
        offsets[-1] = total
        return offsets, validity

    def _starts(self) -> Level:
        """Return the repetition levels that remain after the list layers so far."""
        if self._rep is None:
            raise FormatError("a list without repetition levels")
        if self._heads is not None:
            self._rep = self._rep[self._heads] - self._rep.dtype.type(1)
            self._heads = None
        return self._rep

    def every(self, size: int) -> None:
        """Step from the items of fixed-size lists to the lists: keep the first level of each `size` items."""
        if any(layer.is_list for layer in self._layers[self._next :]):
            raise UnsupportedFormatError("lists of fixed-size lists of structs are not supported")
        if self.count % size:
            raise FormatError(f"{self.count} items do not make lists of {size}")
        self.count //= size
        if self._definition is not None:
            self._definition = self._item_levels()[::size]
            self._items = None

    def _next_layer(self, is_list: bool) -> Layer:
        if self._next >= len(self._layers):
            # In a page without layers nothing is null.
            if self._layers or is_list:
                raise FormatError("the page has fewer layers than the column's type")
            return Layer(False, 0, 0, 0)
        layer = self._layers[self._next]
        if layer.is_list != is_list:
            raise FormatError("the layers of the page do not fit the column's type")
        self._next += 1
        return layer

    def finish(self) -> None:
        """Check that no layer is left.

        Raises:
            FormatError: the type has fewer layers than the page.
        """
        if self._next != len(self._layers):
            raise FormatError("the page has more layers than the column's type")

    def _max_present(self) -> int:
        """Highest definition number of an entry that is not inside a null or empty list."""
        following = self._layers[self._next :]
        return next((layer.below for layer in following if layer.is_list), self._layers[-1].upper)

    def _item_levels(self) -> Level:
        """Return the definition levels of the entries of the current layer."""
        if self._items is None:
            assert self._definition is not None
            limit = self._max_present()
            if limit >= self._layers[-1].upper:
                self._items = self._definition
            else:
                self._items = self._definition[self._definition <= limit]
        return self._items
