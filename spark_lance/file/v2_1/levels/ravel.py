"""Arrow arrays to the levels of Lance 2.1 and 2.2: one `Leaf` per column, for writers.

Every column of a page is a run of *levels*. A level is one (rep, def) pair; most levels own a value slot.

    layers   innermost first: one ITEM per leaf, struct and fixed-size list of structs, one LIST per list
             or map. The page's data decide whether a layer is nullable or emptyable (but see
             `_nullable_layers`).
    def      0 = valid all the way up. Otherwise the number of the outermost layer that is null or empty.
             Numbers are handed out from 1, innermost layer first: NULLABLE_ITEM takes one (null),
             NULLABLE_LIST one (null), EMPTYABLE_LIST one (empty), NULL_AND_EMPTY_LIST two (null, empty).
    rep      number of lists that start here instead of continuing, innermost first: 0 = next item of the
             innermost list, number of LIST layers = next row.

Example, list<int32> [[1, null], [], null, [2]]: layers [NULLABLE_ITEM, NULL_AND_EMPTY_LIST],
rep 1 0 1 1 1, def 0 1 3 2 0, slots 1 null 2. Levels of a null or empty list own no slot ("invisible");
null items and items of null structs do. (Lance file format 2.1, repetition and definition levels.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import flags_to_numpy, make_filterable, numbers_to_arrow, numbers_to_numpy
from spark_lance.arrow.buffers import expand_ranges
from spark_lance.arrow.numpy_types import Bools, Ints
from spark_lance.errors import NullValueError
from spark_lance.file.base.schema import Field
from spark_lance.proto import encodings21_pb2 as pb

U16 = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Leaf:
    """The content of one column for a run of rows.

    `rep` and `definition` (uint16) have one entry per level; None stands for all zero. `valueless` contains
    the ascending numbers of the levels without a slot. `values` has one entry per slot, in level order; it is
    arbitrary if the definition of its level is above 0.
    `rows` is the number of top-level rows. `length` is the number of entries that the page's metadata states:
    rows times the sizes of the fixed-size lists of structs above the leaf.
    """

    field: Field
    layers: tuple[pb.RepDefLayer, ...]
    rep: U16 | None
    definition: U16 | None
    values: pa.Array
    valueless: Ints
    num_levels: int
    rows: int
    length: int

    @property
    def lists(self) -> int:
        """Number of LIST layers: the rep of a level that starts a row."""
        return sum(layer in _LIST_LAYERS for layer in self.layers)

    @property
    def max_definition(self) -> int:
        """Highest definition number that the layers assign."""
        return sum(_NUM_DEFINITIONS[layer] for layer in self.layers)

    def slot_validity(self) -> Bools | None:
        """Return for each slot whether its value is valid; None if all are."""
        # The last of these layers is the outermost one inside the innermost list.
        inside = list(itertools.takewhile(lambda layer: layer not in _LIST_LAYERS, self.layers))
        last = sum(_NUM_DEFINITIONS[layer] for layer in inside)
        if self.definition is None or last == 0:
            return None
        definition = self.definition[self.definition <= last] if len(self.valueless) else self.definition
        valid: Bools = definition == 0
        return None if valid.all() else valid

    def has_slot(self) -> Bools:
        """Return for each level whether it has a slot."""
        mask = np.ones(self.num_levels, np.bool_)
        mask[self.valueless] = False
        return mask

    def levels_before(self, slots: Ints) -> Ints:
        """Return for each slot number the number of levels up to and including the previous slot.

        It is 0 for slot 0. For slot number `len(values)` it is the number of all levels, including those
        after the last slot.
        """
        if not len(self.valueless):
            return slots
        slots_before = self.valueless - np.arange(len(self.valueless))
        before = slots + np.searchsorted(slots_before, slots, side="left")
        return np.where(slots == 0, 0, np.where(slots == len(self.values), self.num_levels, before))

    def row_starts(self) -> Ints:
        """Return the number of the first level of each row (entry of the page)."""
        if self.rep is None:
            return np.arange(self.num_levels, dtype=np.int64)
        return np.flatnonzero(self.rep == self.lists)

    def halves(self) -> tuple[Leaf, Leaf]:
        """Return both halves of at least two rows, with the same layers."""
        middle = self.rows // 2
        per_row = self.length // self.rows
        level = int(self.row_starts()[middle * per_row])
        return self._part(0, level, middle), self._part(level, self.num_levels, self.rows - middle)

    def _part(self, start: int, stop: int, rows: int) -> Leaf:
        """Return levels [start, stop), which are `rows` rows."""
        first, last = np.searchsorted(self.valueless, [start, stop]).tolist()
        return replace(
            self,
            rep=None if self.rep is None else self.rep[start:stop],
            definition=None if self.definition is None else self.definition[start:stop],
            values=self.values[start - first : stop - last],
            valueless=self.valueless[first:last] - start,
            num_levels=stop - start,
            rows=rows,
            length=self.length // self.rows * rows,
        )


_LIST_KINDS = {
    (False, False): pb.REPDEF_ALL_VALID_LIST,
    (True, False): pb.REPDEF_NULLABLE_LIST,
    (False, True): pb.REPDEF_EMPTYABLE_LIST,
    (True, True): pb.REPDEF_NULL_AND_EMPTY_LIST,
}
_LIST_LAYERS = frozenset(_LIST_KINDS.values())
_NUM_DEFINITIONS: dict[pb.RepDefLayer, int] = {
    pb.REPDEF_ALL_VALID_ITEM: 0,
    pb.REPDEF_NULLABLE_ITEM: 1,
    pb.REPDEF_ALL_VALID_LIST: 0,
    pb.REPDEF_NULLABLE_LIST: 1,
    pb.REPDEF_EMPTYABLE_LIST: 1,
    pb.REPDEF_NULL_AND_EMPTY_LIST: 2,
}


@dataclass(frozen=True)
class _Levels:
    """The levels during the walk from the top-level field to a leaf.

    Definition numbers are known only at the leaf. Until then layer k, counted from the outside, marks its
    nulls with the code 2k+1 and its empty lists with 2k+2. Depths count the lists from the outside, too: 0
    starts a row, d continues the d-th list. `live` flags the levels that have a slot at this point of the
    walk. None means: all codes are 0, no lists yet, all levels are live. `spread_at` is the number of the
    last layer that multiplies levels.
    """

    count: int
    layers: tuple[pb.RepDefLayer, ...] = ()
    nullable: tuple[bool, ...] = ()
    codes: npt.NDArray[np.uint8] | None = None
    depths: npt.NDArray[np.uint8] | None = None
    live: Bools | None = None
    entries_per_row: int = 1
    spread_at: int = -1

    def hidden(self) -> Bools | None:
        """Return for each live level whether an outer layer is null; None if none is."""
        if self.codes is None:
            return None
        codes = self.codes if self.live is None else self.codes[self.live]
        hidden: Bools = codes != 0
        return hidden if hidden.any() else None

    def with_codes(self, marks: list[tuple[Bools, int]]) -> npt.NDArray[np.uint8] | None:
        """Return the codes after setting each (mask over live levels, code) of `marks`."""
        if not marks:
            return self.codes
        codes = np.zeros(self.count, np.uint8) if self.codes is None else self.codes.copy()
        for mask, code in marks:
            if self.live is None:
                codes[mask] = code
            else:
                at = np.zeros(self.count, np.bool_)
                at[self.live] = mask
                codes[at] = code
        return codes


def ravel(field: Field, array: pa.Array) -> Iterator[Leaf]:
    """Yield one `Leaf` per column of the top-level `field`, in column order.

    `array` has the type `field.arrow_type()` and may be a slice. Names of list items may differ, and
    extension types may replace their storage types.

    Raises:
        SchemaError: a non-nullable field has a null.
    """
    return _ravel_field(field, array, _Levels(len(array)), len(array), field.name)


def _ravel_field(field: Field, array: pa.Array, levels: _Levels, rows: int, path: str) -> Iterator[Leaf]:
    array = _storage(array)
    kind = field.kind
    if kind in ("list", "map"):
        nested, items = _list_step(field, array, levels, path)
        child = field.children[0]
        yield from _ravel_field(child, items, nested, rows, f"{path}.{child.name}")
        return
    if pa.types.is_dictionary(array.type):
        array = _dense_dictionary(array)
    levels = _item_step(field, array, levels, path)
    if kind == "struct":
        for i, child in enumerate(field.children):
            yield from _ravel_field(child, array.field(i), levels, rows, f"{path}.{child.name}")
    elif kind == "fsl_struct":
        nested, items = _fixed_list_step(field, array, levels)
        child = field.children[0]
        yield from _ravel_field(child, items, nested, rows, f"{path}.{child.name}")
    else:
        yield _make_leaf(field, array, levels, rows)


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _dense_dictionary(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Return an equal array whose dictionary has no null items and at most as many items as the array."""
    dictionary = array.dictionary
    if dictionary.null_count == 0 and len(dictionary) <= len(array):
        return array
    usable = pc.is_valid(array)
    if dictionary.null_count:
        usable = pc.and_(usable, pc.fill_null(pc.is_valid(dictionary).take(array.indices), False))
    valid = usable.to_numpy(zero_copy_only=False)
    indices = pc.fill_null(array.indices, 0).to_numpy(zero_copy_only=False)
    used, positions = np.unique(indices[valid], return_inverse=True)
    dense = np.zeros(len(array), indices.dtype)
    dense[valid] = positions
    renumbered = pa.array(dense, array.type.index_type, mask=~valid)
    values = dictionary.take(pa.array(used, array.type.index_type))
    return pa.DictionaryArray.from_arrays(renumbered, values, ordered=array.type.ordered)


def _nulls(array: pa.Array, levels: _Levels) -> Bools | None:
    """Return where `array` is null and no outer layer is; None if nowhere."""
    if array.null_count == 0:
        return None
    nulls: Bools = flags_to_numpy(pc.is_null(array))
    hidden = levels.hidden()
    if hidden is not None:
        nulls = nulls & ~hidden
    return nulls if nulls.any() else None


def _refuse_nulls(field: Field, nulls: Bools | None, path: str) -> None:
    if nulls is not None and not field.nullable:
        count = int(np.count_nonzero(nulls))
        raise NullValueError(f"column {path!r} is not nullable but the data has {count} null(s) in it", path)


def _item_step(field: Field, array: pa.Array, levels: _Levels, path: str) -> _Levels:
    """Add the ITEM layer of a leaf, a struct or a fixed-size list."""
    nulls = _nulls(array, levels)
    _refuse_nulls(field, nulls, path)
    layer = pb.REPDEF_ALL_VALID_ITEM if nulls is None else pb.REPDEF_NULLABLE_ITEM
    codes = levels.with_codes([] if nulls is None else [(nulls, 2 * len(levels.layers) + 1)])
    return replace(
        levels,
        layers=(*levels.layers, layer),
        nullable=(*levels.nullable, field.nullable),
        codes=codes,
    )


def _fixed_list_step(field: Field, array: pa.Array, levels: _Levels) -> tuple[_Levels, pa.Array]:
    """Multiply the levels for the structs of a fixed-size list, which is not inside a list."""
    size = field.list_size
    codes = None if levels.codes is None else np.repeat(levels.codes, size)
    nested = replace(
        levels,
        count=levels.count * size,
        codes=codes,
        entries_per_row=levels.entries_per_row * size,
        spread_at=len(levels.layers) - 1,
    )
    return nested, array.values.slice(array.offset * size, len(array) * size)


def _list_step(field: Field, array: pa.Array, levels: _Levels, path: str) -> tuple[_Levels, pa.Array]:
    """Add the LIST layer of a list or map and step down to its items."""
    hidden = levels.hidden()
    nulls = _nulls(array, levels)
    _refuse_nulls(field, nulls, path)
    offsets = numbers_to_numpy(array.offsets).astype(np.int64, copy=False)
    lengths = np.diff(offsets)
    for unreachable in (hidden, nulls):
        if unreachable is not None:
            lengths[unreachable] = 0
    valueless = lengths == 0
    empties = valueless.copy()
    for unreachable in (hidden, nulls):
        if unreachable is not None:
            empties &= ~unreachable
    k = len(levels.layers)
    marks = [] if nulls is None else [(nulls, 2 * k + 1)]
    has_empties = bool(empties.any())
    if has_empties:
        marks.append((empties, 2 * k + 2))
    layer = _LIST_KINDS[nulls is not None, has_empties]
    list_levels = replace(
        levels,
        layers=(*levels.layers, layer),
        nullable=(*levels.nullable, field.nullable),
        codes=levels.with_codes(marks),
        spread_at=k,
    )
    return _expand_lists(list_levels, lengths, valueless), _items(array, offsets, lengths)


def _expand_lists(levels: _Levels, lengths: Ints, valueless: Bools) -> _Levels:
    """Step into a LIST layer: a live level becomes one level per item, or one level without a slot."""
    has_valueless = bool(valueless.any())
    counts = np.where(valueless, 1, lengths) if has_valueless else lengths
    if levels.live is not None:
        every = np.ones(levels.count, np.int64)
        every[levels.live] = counts
        counts = every
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - counts
    depths = np.full(total, sum(layer in _LIST_LAYERS for layer in levels.layers), np.uint8)
    depths[starts] = 0 if levels.depths is None else levels.depths
    codes = None
    if levels.codes is not None:
        # A level with several items is valid, so only the first level of each list can have a code.
        codes = np.zeros(total, np.uint8)
        codes[starts] = levels.codes
    live = None
    if has_valueless or levels.live is not None:
        live = np.ones(total, np.bool_)
        if levels.live is not None:
            dead = np.ones(levels.count, np.bool_)
            dead[levels.live] = valueless
            valueless = dead
        live[starts[valueless]] = False
    return replace(levels, count=total, codes=codes, depths=depths, live=live)


def _items(array: pa.Array, offsets: Ints, lengths: Ints) -> pa.Array:
    """Return the items of all lists, without items under nulls."""
    total = int(lengths.sum())
    first = int(offsets[0]) if len(offsets) else 0
    if len(offsets) == 0 or int(offsets[-1]) - first == total:
        return array.values.slice(first, total)
    return make_filterable(array.values).take(numbers_to_arrow(expand_ranges(offsets[:-1], lengths)))


def _make_leaf(field: Field, values: pa.Array, levels: _Levels, rows: int) -> Leaf:
    """Convert codes and depths, counted from the outside, to the page's numbers, counted from the inside."""
    layers = _nullable_layers(levels)
    numbers = np.zeros(2 * len(layers) + 1, np.uint16)
    last = 0
    for k in range(len(layers) - 1, -1, -1):
        layer = layers[k]
        if layer in (pb.REPDEF_NULLABLE_ITEM, pb.REPDEF_NULLABLE_LIST, pb.REPDEF_NULL_AND_EMPTY_LIST):
            last += 1
            numbers[2 * k + 1] = last
        if layer in (pb.REPDEF_EMPTYABLE_LIST, pb.REPDEF_NULL_AND_EMPTY_LIST):
            last += 1
            numbers[2 * k + 2] = last
    definition = None
    if last:
        definition = np.zeros(levels.count, np.uint16) if levels.codes is None else numbers[levels.codes]
    rep = None
    if levels.depths is not None:
        lists = sum(layer in _LIST_LAYERS for layer in layers)
        rep = np.subtract(lists, levels.depths, dtype=np.uint16)
    return Leaf(
        field=field,
        layers=tuple(reversed(layers)),
        rep=rep,
        definition=definition,
        values=values,
        valueless=np.zeros(0, np.int64) if levels.live is None else np.flatnonzero(~levels.live),
        num_levels=levels.count,
        rows=rows,
        length=rows * levels.entries_per_row,
    )


_WITH_NULLS: dict[pb.RepDefLayer, pb.RepDefLayer] = {
    pb.REPDEF_ALL_VALID_ITEM: pb.REPDEF_NULLABLE_ITEM,
    pb.REPDEF_ALL_VALID_LIST: pb.REPDEF_NULLABLE_LIST,
    pb.REPDEF_EMPTYABLE_LIST: pb.REPDEF_NULL_AND_EMPTY_LIST,
}


def _nullable_layers(levels: _Levels) -> tuple[pb.RepDefLayer, ...]:
    """Return the layers, made nullable where the reference reader requires it.

    The reader assigns nulls to the wrong layer if a page has no valid value and the innermost layer is all
    valid. So the fields of a nullable struct, up to the next list, become nullable, too. If structs around
    lists are all valid in one page and not in another, the reader takes their definition number for that of
    the list items. So structs around lists are nullable in every page if their field is. The same applies to
    fixed-size lists of structs and the structs around them.
    """
    out: list[pb.RepDefLayer] = []
    inherited = False
    for k, layer in enumerate(levels.layers):
        spread = k <= levels.spread_at and layer not in _LIST_LAYERS
        nullable = inherited or (spread and levels.nullable[k])
        out.append(_WITH_NULLS.get(layer, layer) if nullable else layer)
        inherited = out[-1] == pb.REPDEF_NULLABLE_ITEM
    return tuple(out)
