"""Text and notebook views of a table, its statistics, and the check of a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any

from spark_lance.errors import FormatError
from spark_lance.file.reader import open_file
from spark_lance.io.display import count_text, counts_text, day_text, html_table, size_text
from spark_lance.table.format.data_files import column_numbers
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.metadata import metadata_table

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

_SMALL_ROWS = 1024


@dataclass(frozen=True)
class FieldStatistics:
    """The id of a field, and the bytes of its pages in the data files of a version."""

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
        """Return `num_deleted_rows`, `num_fragments` and `num_small_files`.

        `num_small_files` counts the fragments with fewer than `max_rows_per_group` physical rows.
        """
        fragments = self.dataset.get_fragments()
        return {
            "num_deleted_rows": sum(fragment.num_deletions for fragment in fragments),
            "num_fragments": len(fragments),
            "num_small_files": sum(fragment.physical_rows < max_rows_per_group for fragment in fragments),
        }

    def index_stats(self, index_name: str) -> dict[str, Any]:
        """Return the statistics of an index, see `LanceDataset.index_statistics`."""
        result: dict[str, Any] = self.dataset.index_statistics(index_name)
        return result

    def data_stats(self) -> DataStatistics:
        """Return the stored bytes of each field. This opens every data file."""
        at = self.dataset.snapshot
        sizes = {field.id: 0 for field in at.schema.walk()}
        for fragment in at.fragments:
            for file in fragment.files:
                store, path = at.bases.data_file(file)
                reader = open_file(store, path, columns=column_numbers(file))
                for field in at.schema.walk():
                    if field.id in file.fields:
                        sizes[field.id] += reader.stored_bytes(replace(field, children=()))
        return DataStatistics([FieldStatistics(number, size) for number, size in sizes.items()])


def check_whole(dataset: LanceDataset) -> None:
    """Check a complete version; see `LanceDataset.validate`."""
    problems = verify(dataset.snapshot)
    damages = [each for each in problems.findings if each.level == "damage"]
    if damages:
        examples = "; ".join(f"{each.where}: {each.message}" for each in damages[:5])
        raise FormatError(f"{len(damages)} damages: {examples}", dataset.uri)


_SHOWN_COLUMNS = 20
_SHOWN_ROWS = 5
_LISTED_COLUMNS = 8


def line(dataset: LanceDataset) -> str:
    """Return the one-line text that a Python shell shows for a table."""
    names = [field.name for field in dataset.lance_schema.fields]
    more = f", +{len(names) - _LISTED_COLUMNS}" if len(names) > _LISTED_COLUMNS else ""
    line = f" branch={dataset.branch!r}," if dataset.branch else ""
    return (
        f"LanceDataset({dataset.uri!r},{line} version={dataset.version}, rows={dataset.count_rows():,}, "
        f"columns=[{', '.join(names[:_LISTED_COLUMNS])}{more}])"
    )


def html(dataset: LanceDataset) -> str:
    """Return the HTML that a notebook shows: a summary of the table and its first rows."""
    fields = dataset.lance_schema.fields
    shown_fields = list(fields[:_SHOWN_COLUMNS])
    head = dataset.head(_SHOWN_ROWS, columns=[field.name for field in shown_fields])
    more = (
        ""
        if len(fields) == len(shown_fields)
        else f" ({len(fields) - len(shown_fields)} columns are not shown)"
    )
    title = (
        f"<b>{escape(dataset.uri)}</b> version {dataset.version}, {count_text(dataset.count_rows(), 'row')}, "
        f"{count_text(len(dataset.manifest.fragments), 'fragment')}, {_size_text(dataset)}{more}"
    )
    names = [f"{field.name}: {kind}" for field, kind in zip(shown_fields, head.schema.types, strict=True)]
    columns = [column.to_pylist() for column in head.columns]
    return html_table(title, names, [[column[row] for column in columns] for row in range(head.num_rows)])


@dataclass(frozen=True, repr=False)
class PlanPicture:
    """A scan plan that a notebook draws: read and skipped fragments, their bytes, and the indexes in use.

    Attributes:
        plan: the plan as text.
        read, skipped: the bytes of each read fragment and of each skipped fragment, by fragment id.
        indices: the indexes that the filter uses, each with the part of the filter that it answers.
    """

    plan: str
    read: Mapping[int, int]
    skipped: Mapping[int, int]
    indices: Sequence[str]

    def __repr__(self) -> str:
        return self.plan

    def _repr_html_(self) -> str:
        """Return the picture: a square for each fragment, blue if it is read."""
        size, whole = sum(self.read.values()), sum(self.read.values()) + sum(self.skipped.values())
        total = len(self.read) + len(self.skipped)
        squares = "".join(_square(number, self) for number in sorted([*self.read, *self.skipped])[:_SQUARES])
        more = f" and {total - _SQUARES:,} more" if total > _SQUARES else ""
        plan = f'<pre style="white-space:pre-wrap;overflow-wrap:anywhere">{escape(self.plan)}</pre>'
        used = "".join(f"<li><code>{escape(line)}</code></li>" for line in self.indices) or "<li>none</li>"
        return (
            f"<div><b>{len(self.read):,} of {total:,} fragments</b> are read: {size_text(size)} of "
            f"{size_text(whole)}, before columns and pages are chosen"
            f'<div style="line-height:14px">{squares}{more}</div>'
            f"<b>Indexes</b><ul>{used}</ul>{plan}</div>"
        )


_SQUARES = 1000


def _square(number: int, picture: PlanPicture) -> str:
    is_read = number in picture.read
    colour, state = ("#5c6bc0", "read") if is_read else ("#9e9e9e", "skipped")
    size = size_text((picture.read if is_read else picture.skipped)[number])
    return (
        f'<span title="fragment {number}: {state}, {size}" style="display:inline-block;width:12px;'
        f'height:12px;margin:1px;background:{colour}"></span>'
    )


def index_rows(dataset: LanceDataset) -> list[tuple[str, str, str, str, str]]:
    """Return the name, type, columns, indexed rows and size of each index."""
    return [
        (
            index.name,
            index.index_type,
            ", ".join(index.field_names),
            "unknown" if index.num_rows_indexed is None else count_text(index.num_rows_indexed, "row"),
            size_text(index.total_size_bytes),
        )
        for index in dataset.describe_indices()
    ]


INDEX_COLUMNS = ("name", "type", "columns", "indexed", "size")
HISTORY_COLUMNS = ("version", "timestamp", "operation", "operationMetrics")


def history_rows(dataset: LanceDataset, limit: int | None) -> list[tuple[int, str, str, str]]:
    """Return the version, time, operation and counts of the newest versions, newest first."""
    rows = metadata_table("history").to_arrow(dataset.snapshot, list(HISTORY_COLUMNS), limit=limit)
    return [
        (
            row["version"],
            day_text(row["timestamp"]),
            row["operation"],
            counts_text(sorted(row["operationMetrics"] or (), key=_is_no_row_count)),
        )
        for row in rows.to_pylist()
    ]


def _is_no_row_count(count: tuple[str, str]) -> bool:
    """Return the key that sorts counts of rows before those of files, because long text is truncated."""
    return not count[0].endswith("Rows")


def _size_text(dataset: LanceDataset) -> str:
    """Return the size of the data files of this version, as text such as "1.5 MiB"."""
    files = (file for fragment in dataset.manifest.fragments for file in fragment.files)
    return size_text(sum(file.file_size_bytes for file in files))
