"""SCALAR_INDICES: the scalar index classes by name."""

from __future__ import annotations

from collections.abc import Mapping

from spark_lance.errors import IndexKindError, suggestion
from spark_lance.index.scalar.base import ScalarIndex
from spark_lance.index.scalar.bitmap import Bitmap
from spark_lance.index.scalar.bloom import BloomFilter
from spark_lance.index.scalar.btree import BTree
from spark_lance.index.scalar.inverted import Inverted
from spark_lance.index.scalar.json_index import JsonIndex
from spark_lance.index.scalar.label_list import LabelList
from spark_lance.index.scalar.ngram import NGram
from spark_lance.index.scalar.rtree import RTree
from spark_lance.index.scalar.zone_map import ZoneMap

SCALAR_INDICES: Mapping[str, type[ScalarIndex]] = {
    kind.name: kind
    for kind in (BTree, Bitmap, LabelList, NGram, ZoneMap, BloomFilter, JsonIndex, RTree, Inverted)
}

# The kind that clustered columns get: the bounds of each zone.
BOUNDS: type[ScalarIndex] = ZoneMap

_ALIASES = {"FTS": "INVERTED", "LABELLIST": "LABEL_LIST", "ZONEMAP": "ZONEMAP", "BLOOMFILTER": "BLOOMFILTER"}


def scalar_kind(name: str) -> type[ScalarIndex]:
    """Return the scalar index class of a name. Case and underscores do not matter for aliases.

    Raises:
        IndexKindError: the name is unknown.
    """
    canonical_name = _ALIASES.get(name.upper().replace("_", ""), name.upper())
    kind = SCALAR_INDICES.get(canonical_name)
    if kind is None:
        raise IndexKindError(
            f"there is no scalar index {name!r}: use one of {', '.join(SCALAR_INDICES)}"
            f"{suggestion(name, SCALAR_INDICES)}"
        )
    return kind
