"""Text and HTML for shells and notebooks: sizes with units, counts, small tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape

_CELL = 60
_ROWS = 20


def size_text(count: float | None) -> str:
    """Return a number of bytes as readable text, such as `1.5 MiB`."""
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def count_text(number: int, noun: str) -> str:
    """Return a number of things, such as "1 row" or "1,200 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def day_text(moment: datetime | None) -> str:
    """Return a time as text, to the second; "" if it is unknown."""
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"


def counts_text(counts: Iterable[tuple[str, str]]) -> str:
    """Return non-zero counts as text, such as "numAddedRows 1,000"."""
    return ", ".join(
        f"{name} {int(value):,}" if value.isdigit() else f"{name} {value}"
        for name, value in counts
        if value != "0"
    )


def cell_text(value: object) -> str:
    """Return the text of a table cell: thousands separators in numbers, long text truncated, "" for None."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if len(text) <= _CELL else text[: _CELL - 3] + "..."


def html_table(title: str, names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table for a notebook: a title and the first 20 rows, text left-aligned.

    Args:
        title: HTML placed before the table.
        names: column names; they are escaped.
        rows: cell values; they are escaped.
    """
    all_rows = list(rows)
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in all_rows[:_ROWS])
    more_text = f"<p>and {len(all_rows) - _ROWS:,} more</p>" if len(all_rows) > _ROWS else ""
    return f"<div>{title}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more_text}</div>"


class TableRepr(ABC):
    """An object that shells show as lines and notebooks show as a table."""

    @abstractmethod
    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        """Return the title, the column names, and the rows."""

    def __dir__(self) -> list[str]:
        return [name for name in object.__dir__(self) if name[:1] != "_" or name[:2] == "__"]

    def __repr__(self) -> str:
        title, _, rows = self._repr_rows()
        all_rows = [[cell_text(value) for value in row] for row in rows]
        more_text = [f"  and {len(all_rows) - _ROWS:,} more"] if len(all_rows) > _ROWS else []
        texts = ["  ".join(cell for cell in cells if cell) for cells in all_rows[:_ROWS]] or ["none"]
        return "\n".join([f"{title}:", *(f"  {text}" for text in texts), *more_text])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        title, names, rows = self._repr_rows()
        return html_table(f"<b>{escape(title)}</b>", names, rows)


def _cell(value: object) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f'<td style="text-align:{"right" if is_number else "left"}">{escape(cell_text(value))}</td>'
