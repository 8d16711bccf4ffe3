"""INDEX_KINDS: properties of each kind of index, for code that reads only index entries.

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
        name: the name in descriptions of indexes.
        type_url: the type URL of the details in an index entry.
        own_file: matches names of files that only this kind has. It identifies entries without details. None
            for kinds that old writers did not have, or that have the files of another kind.
        row_ids_until: the highest index version whose segments have stable row ids if the table has them; -1
            for kinds that always have row addresses, or that are built per fragment.
        is_translated: whether a fragment-reuse entry can translate the row addresses of the index.
        present_file: a file that segments of old, unsupported versions do not have; None if this package
            reads all versions.
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
        # Has the same file as a bitmap index; the type of the column distinguishes them.
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
        # Has the files of the index on its values.
        IndexKind("Json", "/lance.index.pb.JsonIndexDetails"),
        # Also has a file with the name of a B-tree's file.
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


def index_label(entry: table_pb2.IndexMetadata) -> str:
    """Return the last part of the type URL of an index entry in lower case, such as "btreeindexdetails"."""
    return label_of_url(str(entry.index_details.type_url))


def find_index_kind(entry: table_pb2.IndexMetadata) -> IndexKind | None:
    """Return the kind of an index entry; None if this release does not know it."""
    return INDEX_KINDS.get(index_label(entry))
