"""Figures of a version, and a check of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spark_lance.errors import FormatError
from spark_lance.file.opening import open_file
from spark_lance.table.format.data_files import column_numbers
from spark_lance.table.maintenance.verify import verify

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

_SMALL_ROWS = 1024


@dataclass(frozen=True)
class FieldStatistics:
    """A field by id, and the bytes of its pages in the data files of a version."""

    id: int
    bytes_on_disk: int


@dataclass(frozen=True)
class DataStatistics:
    """The sizes of the fields of a version."""

    fields: list[FieldStatistics]


@dataclass(frozen=True)
class LanceStats:
    """The methods of `LanceDataset.stats`."""

    dataset: LanceDataset

    def dataset_stats(self, max_rows_per_group: int = _SMALL_ROWS) -> dict[str, int]:
        """Return `num_deleted_rows`, `num_fragments`, and `num_small_files`: those below so many rows."""
        fragments = self.dataset.get_fragments()
        return {
            "num_deleted_rows": sum(fragment.num_deletions for fragment in fragments),
            "num_fragments": len(fragments),
            "num_small_files": sum(fragment.physical_rows < max_rows_per_group for fragment in fragments),
        }

    def index_stats(self, index_name: str) -> dict[str, Any]:
        """Return what is known of an index, see `LanceDataset.index_statistics`."""
        result: dict[str, Any] = self.dataset.index_statistics(index_name)
        return result

    def data_stats(self) -> DataStatistics:
        """Return the bytes that each field takes; opens every data file."""
        at = self.dataset.snapshot
        sizes = {field.id: 0 for field in at.schema.walk()}
        for fragment in at.fragments:
            for file in fragment.files:
                store, path = at.bases.data_file(file)
                opened = open_file(store, path, columns=column_numbers(file))
                for field in at.schema.walk():
                    if field.id in file.fields:
                        sizes[field.id] += opened.stored_bytes(replace(field, children=()))
        return DataStatistics([FieldStatistics(number, size) for number, size in sizes.items()])


def check_whole(dataset: LanceDataset) -> None:
    """Check a version as a whole; see `LanceDataset.validate`."""
    problems = verify(dataset.snapshot)
    damages = [each for each in problems.findings if each.level == "damage"]
    if damages:
        listed = "; ".join(f"{each.where}: {each.message}" for each in damages[:5])
        raise FormatError(f"{len(damages)} damages: {listed}", dataset.uri)
