"""Indices built in parts by several processes, and then committed as one."""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.base import SameDataset
from spark_lance.datasets.index import IndexMixin
from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.index.vector.kinds import VECTOR_LABEL
from spark_lance.late import late
from spark_lance.proto import table_pb2
from spark_lance.table.index_kinds import label_of

if TYPE_CHECKING:
    from spark_lance.datasets.index_segment import Index
    from spark_lance.index.columns import leaf_field
    from spark_lance.index.entries import check_name
    from spark_lance.index.scalar.create import build_segment, merge_parts, merge_segments, write_part
    from spark_lance.index.scalar.kinds import scalar_kind
    from spark_lance.index.vector.create import merge_vector_segments, recipe_with, write_vector_segment
    from spark_lance.index.vector.storage import INDEX_TYPES
    from spark_lance.table.commits.commit import commit_operation
    from spark_lance.table.operations.create_index import create_index_message
else:
    INDEX_TYPES = late("spark_lance.index.vector.storage", "INDEX_TYPES")
    Index = late("spark_lance.datasets.index_segment", "Index")
    leaf_field = late("spark_lance.index.columns", "leaf_field")
    check_name = late("spark_lance.index.entries", "check_name")
    build_segment = late("spark_lance.index.scalar.create", "build_segment")
    scalar_kind = late("spark_lance.index.scalar.kinds", "scalar_kind")
    merge_parts = late("spark_lance.index.scalar.create", "merge_parts")
    merge_segments = late("spark_lance.index.scalar.create", "merge_segments")
    write_part = late("spark_lance.index.scalar.create", "write_part")
    merge_vector_segments = late("spark_lance.index.vector.create", "merge_vector_segments")
    recipe_with = late("spark_lance.index.vector.create", "recipe_with")
    write_vector_segment = late("spark_lance.index.vector.create", "write_vector_segment")
    commit_operation = late("spark_lance.table.commits.commit", "commit_operation")
    create_index_message = late("spark_lance.table.operations.create_index", "create_index_message")

__all__ = ["IndexPartsMixin"]

_VECTOR_ARGUMENTS = ("num_partitions", "num_sub_vectors", "num_bits")


class IndexPartsMixin(IndexMixin):
    """Building an index in parts.

    Each process builds a segment of some fragments with `create_index_uncommitted` and sends what it returns
    to one of them, which merges segments (`merge_existing_index_segments`) or not, and commits them with
    `commit_existing_index_segments`.
    """

    def create_index_uncommitted(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        fragment_ids: Iterable[int],
        index_uuid: str | None = None,
        **options: Any,
    ) -> Index:
        """Build a segment of some fragments, commit nothing, and return its entry.

        Args:
            column, index_type, name, options: as for `create_index` or `create_scalar_index`. Segments of
                vectors that are given the same `ivf_centroids`, and of PQ `pq_codebook`, can be merged.
            fragment_ids: the fragments.
            index_uuid: names the segment; a new one by default.

        Raises:
            SchemaError: the column does not exist, or cannot be indexed so.
            OptionError: an option is wrong, or a fragment does not exist.
        """
        fragments = self._fragments_named(fragment_ids)
        name = name or f"{column}_idx"
        number = None if index_uuid is None else _uuid(index_uuid)
        if index_type.upper() in INDEX_TYPES.keys():  # noqa: SIM118 (it is imported late)
            metric = options.pop("metric", "l2")
            partitions, sub_vectors, bits = (options.pop(argument, None) for argument in _VECTOR_ARGUMENTS)
            recipe = recipe_with(index_type, metric, partitions, sub_vectors, bits, options)
            entry = write_vector_segment(self.snapshot, column, recipe, name, fragments, number)
        else:
            kind = scalar_kind(index_type)
            kind.check(options)
            entry = build_segment(self.snapshot, column, kind, name, fragments, options, number)
        return Index.of(entry)

    def create_index_part(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        fragment_ids: Iterable[int],
        index_uuid: str,
        **options: Any,
    ) -> None:
        """Build a part of the segment `index_uuid`, which `merge_index_metadata` puts together.

        Args:
            column, index_type, name, options: as for `create_scalar_index`.
            fragment_ids: the fragments.
            index_uuid: what the parts have in common.

        Raises:
            SchemaError, OptionError: as `create_index_uncommitted`.
        """
        kind = scalar_kind(index_type)
        kind.check(options)
        fragments = self._fragments_named(fragment_ids)
        number = _uuid(index_uuid)
        write_part(self.snapshot, column, kind, name or f"{column}_idx", fragments, number, options)

    def merge_index_metadata(self, index_uuid: str, index_type: str) -> Index:
        """Put the parts of a segment together, commit nothing, and return its entry.

        Raises:
            IndexNotFoundError: there are no parts.
            OptionError: they are of another kind, or two of them cover one fragment.
        """
        kind = scalar_kind(index_type)
        entry = merge_parts(self.snapshot, _uuid(index_uuid))
        if label_of(entry) != kind.label:
            raise OptionError(f"the parts of {index_uuid} are of another kind than {index_type}")
        return Index.of(entry)

    def merge_existing_index_segments(self, segments: Sequence[Index]) -> Index:
        """Put segments that are not committed together, commit nothing, and return the entry of a new one.

        Raises:
            OptionError: they are not of one index, or were trained apart, or two of them cover one fragment.
        """
        if not segments:
            raise OptionError("there are no segments to merge")
        entries = [segment.message() for segment in segments]
        merge = merge_vector_segments if label_of(entries[0]) == VECTOR_LABEL else merge_segments
        return Index.of(merge(self.snapshot, entries))

    def commit_existing_index_segments(
        self: SameDataset, index_name: str, column: str, segments: Sequence[Index]
    ) -> SameDataset:
        """Make segments an index, in place of one of that name, and return the version that has it.

        Raises:
            OptionError: the name is taken by an index of another column, or two segments cover one fragment.
            CommitError: the commit failed; see its subclasses. The files of the segments stay.
        """
        field = leaf_field(self.snapshot.schema, column)
        check_name(self.manifest, index_name, field.id, replace=True)
        entries = [segment.message() for segment in segments]
        covered: set[int] = set()
        for segment, entry in zip(segments, entries, strict=True):
            if list(entry.fields) != [field.id]:
                raise OptionError(f"segment {segment.uuid} is not one of column {column!r}")
            twice = covered & set(segment.fragment_ids)
            if twice:
                raise OptionError(f"two segments cover fragment {min(twice)}: build one of them")
            covered |= set(segment.fragment_ids)
            entry.name = index_name
        removed = [old for old in self.manifest.indices if old.name == index_name]
        version = min([self.version, *(entry.dataset_version for entry in entries)])
        operation = create_index_message(entries, removed)
        return self._at(commit_operation(self.store, self.root, operation, read_version=version))

    def _fragments_named(self, ids: Iterable[int]) -> list[table_pb2.DataFragment]:
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise OptionTypeError(f"fragment_ids is a list of numbers, not {ids!r}")
        fragments = {fragment.id: fragment for fragment in self.snapshot.fragments}
        numbers = sorted(set(ids))
        lacking = [number for number in numbers if number not in fragments]
        if lacking or not numbers:
            what = f"no fragment {lacking[0]}" if lacking else "no fragment named"
            raise OptionError(f"there is {what}; the version has {len(fragments)} fragments")
        return [fragments[number] for number in numbers]


def _uuid(text: str) -> uuids.UUID:
    try:
        return uuids.UUID(text)
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f"{text!r} is not a uuid") from None
