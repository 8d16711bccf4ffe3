"""A table as a line or a small table in a notebook; its statistics, and a check of a version."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from spark_lance.errors import FormatError
from spark_lance.file.reader import open_file
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


_SHOWN_COLUMNS = 20
_SHOWN_ROWS = 5
_SHOWN_TEXT = 60
_LISTED_COLUMNS = 8


def line(dataset: LanceDataset) -> str:
    """Return the line of a shell."""
    names = [field.name for field in dataset.lance_schema.fields]
    more = f", +{len(names) - _LISTED_COLUMNS}" if len(names) > _LISTED_COLUMNS else ""
    line = f" branch={dataset.branch!r}," if dataset.branch else ""
    return (
        f"LanceDataset({dataset.uri!r},{line} version={dataset.version}, rows={dataset.count_rows()}, "
        f"columns=[{', '.join(names[:_LISTED_COLUMNS])}{more}])"
    )


def html(dataset: LanceDataset) -> str:
    """Return what a notebook shows: what the table is, and its first rows."""
    fields = dataset.lance_schema.fields
    shown_fields = list(fields[:_SHOWN_COLUMNS])
    head = dataset.head(_SHOWN_ROWS, columns=[field.name for field in shown_fields])
    more = (
        ""
        if len(fields) == len(shown_fields)
        else f" ({len(fields) - len(shown_fields)} columns are not shown)"
    )
    title = (
        f"<b>{escape(dataset.uri)}</b> version {dataset.version}, {dataset.count_rows():,} rows, "
        f"{len(dataset.manifest.fragments)} fragments, {_size_text(dataset)}{more}"
    )
    names = "".join(
        f"<th>{escape(field.name)}<br><small>{escape(str(kind))}</small></th>"
        for field, kind in zip(shown_fields, head.schema.types, strict=True)
    )
    columns = [column.to_pylist() for column in head.columns]
    rows = "".join(
        f"<tr>{''.join(f'<td>{_cell(column[row])}</td>' for column in columns)}</tr>"
        for row in range(head.num_rows)
    )
    return f"<div>{title}<table><thead><tr>{names}</tr></thead><tbody>{rows}</tbody></table></div>"


def _size_text(dataset: LanceDataset) -> str:
    """Return how much the data files of this version take, as text such as "1.5 MiB"."""
    files = (file for fragment in dataset.manifest.fragments for file in fragment.files)
    size = float(sum(file.file_size_bytes for file in files))
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 3] + "...")
