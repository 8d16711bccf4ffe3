"""INDEX_KINDS: the format's facts about each kind of index, for code that reads only its entries.

The index layer builds and searches segments, with one module per kind. (Lance index format: manifest entry,
fragment reuse, coverage through table changes.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_lance.proto import table_pb2


@dataclass(frozen=True)
class IndexKind:
    """A kind of index.

    Attributes:
        name: as descriptions of indices have it.
        type_url: of the details in a manifest's entry.
        own_file: matches the names of files that only this kind has, by which entries are told whose writer
            left the details out; None for kinds that old writers lacked, or that have the files of another.
        row_ids_until: the highest format version whose segments hold stable row ids where a table has them;
            -1 for kinds that hold row addresses all the same, or are made per fragment.
        is_translated: whether a fragment-reuse entry can translate the addresses that it holds.
        present_file: a file that segments of older forms, which are not read here, lack; None if all forms
            are read.
    """

    name: str
    type_url: str
    own_file: re.Pattern[str] | None = None
    row_ids_until: int = -1
    is_translated: bool = True
    present_file: str | None = None

    @property
    def label(self) -> str:
        """The last part of the type URL in lower case, such as "btreeindexdetails"."""
        return label_of_url(self.type_url)


def label_of_url(type_url: str) -> str:
    """Return the last part of a type URL in lower case."""
    return type_url.rpartition(".")[2].lower()


INDEX_KINDS: Mapping[str, IndexKind] = {
    kind.label: kind
    for kind in (
        IndexKind(
            "Vector",
            "/lance.index.pb.VectorIndexDetails",
            own_file=re.compile(r"index\.idx"),
            row_ids_until=2,
            present_file="auxiliary.idx",
        ),
        IndexKind(
            "Bitmap",
            "/lance.table.BitmapIndexDetails",
            own_file=re.compile(r"bitmap_page_lookup\.lance"),
            row_ids_until=0,
        ),
        # Has the file of a bitmap; the type of its column tells it from one.
        IndexKind("LabelList", "/lance.table.LabelListIndexDetails", row_ids_until=1),
        IndexKind(
            "Inverted",
            "/lance.table.InvertedIndexDetails",
            own_file=re.compile(r"metadata\.lance|invert\.lance|part_\d+_invert\.lance"),
            row_ids_until=3,
            present_file="metadata.lance",
        ),
        IndexKind(
            "BTree", "/lance.table.BTreeIndexDetails", own_file=re.compile(r"(part_\d+_)?page_lookup\.lance")
        ),
        IndexKind(
            "NGram",
            "/lance.table.NGramIndexDetails",
            own_file=re.compile(r"ngram_postings\.lance"),
            row_ids_until=0,
            is_translated=False,
        ),
        IndexKind("ZoneMap", "/lance.table.ZoneMapIndexDetails", own_file=re.compile(r"zonemap\.lance")),
        IndexKind(
            "BloomFilter",
            "/lance.index.pb.BloomFilterIndexDetails",
            own_file=re.compile(r"bloomfilter\.lance"),
        ),
        # Has the files of the index over its values.
        IndexKind("Json", "/lance.index.pb.JsonIndexDetails"),
        # Has a file of the name of a B-tree's.
        IndexKind(
            "RTree",
            "/lance.index.pb.RTreeIndexDetails",
            own_file=re.compile(r"nulls\.lance"),
            row_ids_until=0,
        ),
        IndexKind("FragmentReuse", "/lance.table.FragmentReuseIndexDetails"),
        IndexKind("MemWal", "/lance.table.MemWalIndexDetails"),
    )
}


def label_of(entry: table_pb2.IndexMetadata) -> str:
    """Return the last part of the type of an entry's details, in lower case; such as "btreeindexdetails"."""
    return label_of_url(str(entry.index_details.type_url))


def kind_of(entry: table_pb2.IndexMetadata) -> IndexKind | None:
    """Return the kind of an entry; None for one that is not known here."""
    return INDEX_KINDS.get(label_of(entry))
