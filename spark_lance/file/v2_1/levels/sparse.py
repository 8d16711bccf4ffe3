"""Nesting without levels (2.3): the positions of nulls and lists, outermost layer first.

A page of 2.3 may store positions instead of a level for every slot. Each layer has as many *slots* as its
outer layer has children; the slots of the outermost layer are the page's rows.

    validity         one slot is one slot of the next layer; some of them are null
    list             every slot has contiguous children; slots without a position have none
    fixed-size list  every slot has `dimension` children

Children of null structs and null fixed-size lists are slots, too.
Example, list<int>, rows [7, null], null, [], [8]: list with counts 2, 1 at the positions 0 and 3, null at 1;
then, of 3 slots, position 1 null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.buffers import pack_bits
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.file.v2_1.base.chunks import Bytes, exclusive_sum

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SparseLayer:
    """One layer of a page.

    Attributes:
        slots: number of its slots.
        valid: flags of the valid slots; None means all.
        offsets: for a list, slots + 1 numbers: the first child of every slot, and the end.
        dimension: for a fixed-size list, its length; else 0.
    """

    slots: int
    valid: Flags | None
    offsets: Ints | None = None
    dimension: int = 0

    @classmethod
    def list_of(cls, slots: int, positions: Ints, counts: Ints, valid: Flags | None) -> SparseLayer:
        """Return a list layer with counts[i] children at slot positions[i]. Positions ascend.

        Raises:
            FormatError: a null has children.
        """
        sizes = np.zeros(slots, dtype=np.int64)
        sizes[positions] = counts
        if valid is not None and bool((sizes[~valid] != 0).any()):
            raise FormatError("a null list has items")
        return cls(slots, valid, exclusive_sum(sizes))

    @property
    def children(self) -> int:
        """Number of slots of the next layer."""
        if self.offsets is not None:
            return int(self.offsets[-1])
        return self.slots * self.dimension if self.dimension else self.slots


@dataclass(frozen=True)
class SparseLevels:
    """The layers of a page, outermost first. Used in place of `Levels`."""

    layers: tuple[SparseLayer, ...]

    def check(self) -> None:
        """Do nothing: each layer was built from the previous one, so they always match."""

    def visible_count(self, without_levels: int) -> int:
        """Return the number of value slots."""
        return self.layers[-1].children if self.layers else without_levels

    def stored_slots(self, without_levels: int, slot_count: int) -> Flags | None:
        """Return the value slots that have a stored value; None means all.

        A page may omit the values of null slots, and of slots inside nulls of outer layers. The possible sets
        of slots are nested, so the number of values determines which one it is.

        Args:
            without_levels: the number of value slots if there are no layers.
            slot_count: the number of stored values.

        Raises:
            FormatError: no set has this number of slots.
        """
        slots = self.visible_count(without_levels)
        if slot_count == slots:
            return None
        inside: Flags = np.ones(slots, dtype=np.bool_)
        for place in range(len(self.layers) - 1, -1, -1):
            valid = self.layers[place].valid
            if valid is None:
                continue
            inside &= self._in_value_slots(valid, place)
            if int(np.count_nonzero(inside)) == slot_count:
                return inside
        raise FormatError(f"{slot_count} values do not fill the page's {slots} slots, null or not")

    def _in_value_slots(self, flags: Flags, place: int) -> Flags:
        """Expand flags of a layer's slots to the value slots inside them."""
        for layer in self.layers[place:]:
            if layer.offsets is not None:
                flags = np.repeat(flags, np.diff(layer.offsets))
            elif layer.dimension:
                flags = np.repeat(flags, layer.dimension)
        return flags

    def unraveler(self, count: int) -> SparseUnraveler:
        """Return an unraveler that walks from the leaf, which has `count` value slots, to the rows."""
        return SparseUnraveler(self, count)


class SparseUnraveler:
    """Walks the layers from the inside out, like `Unraveler`."""

    def __init__(self, levels: SparseLevels, count: int) -> None:
        """Start at the leaf, which has `count` value slots."""
        self.count = count
        self._layers = list(levels.layers)

    def item(self) -> Bytes | None:
        """Take an item layer (leaf, struct, fixed-size list of structs): its validity bitmap or None."""
        return _bitmap(self._next_layer(is_list=False))

    def list(self) -> tuple[npt.NDArray[np.int64], Bytes | None]:
        """Take a list layer: its int64 offsets, one more than lists, and its validity bitmap or None."""
        layer = self._next_layer(is_list=True)
        assert layer.offsets is not None
        if layer.children != self.count:
            raise FormatError(f"lists of {layer.children} items do not fit {self.count} items")
        self.count = layer.slots
        return layer.offsets, _bitmap(layer)

    def every(self, size: int) -> None:
        """Step from the items of fixed-size lists to the lists."""
        if not self._layers or self._layers[-1].dimension != size:
            raise FormatError("the layers of the page do not fit the column's type")
        self.count //= size

    def finish(self) -> None:
        """Check that no layer is left.

        Raises:
            FormatError: the type has fewer layers than the page.
        """
        if self._layers:
            raise FormatError("the page has more layers than the column's type")

    def _next_layer(self, is_list: bool) -> SparseLayer:
        if not self._layers:
            raise FormatError("the page has fewer layers than the column's type")
        layer = self._layers.pop()
        if (layer.offsets is not None) != is_list:
            raise FormatError("the layers of the page do not fit the column's type")
        if not is_list and layer.slots != self.count:
            raise FormatError(f"{layer.slots} slots do not fit {self.count} items")
        return layer


def _bitmap(layer: SparseLayer) -> Bytes | None:
    return None if layer.valid is None else pack_bits(layer.valid)
