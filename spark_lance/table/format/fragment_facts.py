"""Facts about all fragments of a version, computed in one pass over them.

A table may have ten thousand fragments, and a commit that adds one checks all of them several times: whether
the ids are distinct, the files have one version, and all rows are counted. Each pass creates a Python object
per fragment. An append only adds the facts of its new fragments to those of the version before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from spark_lance.proto import table_pb2


class FragmentFacts(NamedTuple):
    """Facts about several fragments.

    Attributes:
        highest: the highest id, -1 without fragments.
        lowest: the id of the first one, 0 without fragments.
        is_rising: whether each id is greater than the one before.
        parts: names of the fields that any of them has.
        versions: major and minor file versions of their data files.
        has_row_ids: whether all of them have stable row ids.
        has_pairs: whether any of them has more than one data file.
        is_counted: whether all of them have their number of rows, and of deleted rows.
    """

    highest: int = -1
    lowest: int = 0
    is_rising: bool = True
    parts: frozenset[str] = frozenset()
    versions: frozenset[tuple[int, int]] = frozenset()
    has_row_ids: bool = True
    has_pairs: bool = False
    is_counted: bool = True

    @classmethod
    def of(cls, fragments: Iterable[table_pb2.DataFragment]) -> FragmentFacts:
        """Return the facts of some fragments, in their order."""
        highest, last, lowest = -1, -1, None
        is_rising = has_row_ids = is_counted = True
        has_pairs = False
        parts: set[str] = set()
        versions: set[tuple[int, int]] = set()
        for fragment in fragments:
            number = fragment.id
            lowest = number if lowest is None else lowest
            is_rising = is_rising and number > last
            highest, last = max(highest, number), number
            has = {field.name for field, _ in fragment.ListFields()}
            parts |= has
            files = fragment.files
            versions.update((file.file_major_version, file.file_minor_version) for file in files)
            has_pairs = has_pairs or len(files) > 1
            has_row_ids = has_row_ids and fragment.WhichOneof("row_id_sequence") is not None
            if "physical_rows" not in has:
                is_counted = is_counted and not files
            elif "deletion_file" in has:
                is_counted = is_counted and bool(fragment.deletion_file.num_deleted_rows)
        return cls(
            highest,
            lowest or 0,
            is_rising,
            frozenset(parts),
            frozenset(versions),
            has_row_ids,
            has_pairs,
            is_counted,
        )

    def and_then(self, more: FragmentFacts) -> FragmentFacts:
        """Return the facts of these fragments and of others behind them."""
        if more.highest < 0:
            return self
        if self.highest < 0:
            return more
        return FragmentFacts(
            max(self.highest, more.highest),
            self.lowest,
            self.is_rising and more.is_rising and more.lowest > self.highest,
            self.parts | more.parts,
            self.versions | more.versions,
            self.has_row_ids and more.has_row_ids,
            self.has_pairs or more.has_pairs,
            self.is_counted and more.is_counted,
        )
