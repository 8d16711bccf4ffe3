"""How a table shows itself: one line in a shell, a small table in a notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset

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
