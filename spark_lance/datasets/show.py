"""How a table shows itself: one line in a shell, a small table in a notebook."""

from __future__ import annotations

from html import escape

from spark_lance.datasets.read import ReadMixin

__all__ = ["ShowMixin"]

_SHOWN_COLUMNS = 20
_SHOWN_ROWS = 5
_SHOWN_TEXT = 60
_LISTED_COLUMNS = 8


class ShowMixin(ReadMixin):
    """The display of a table for people."""

    def __repr__(self) -> str:
        names = [field.name for field in self.lance_schema.fields]
        more = f", +{len(names) - _LISTED_COLUMNS}" if len(names) > _LISTED_COLUMNS else ""
        line = f" branch={self.branch!r}," if self.branch else ""
        return (
            f"LanceDataset({self.uri!r},{line} version={self.version}, rows={self.count_rows()}, "
            f"columns=[{', '.join(names[:_LISTED_COLUMNS])}{more}])"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what the table is, and its first rows."""
        fields = self.lance_schema.fields
        shown_fields = list(fields[:_SHOWN_COLUMNS])
        head = self.head(_SHOWN_ROWS, columns=[field.name for field in shown_fields])
        more = (
            ""
            if len(fields) == len(shown_fields)
            else f" ({len(fields) - len(shown_fields)} columns are not shown)"
        )
        title = (
            f"<b>{escape(self.uri)}</b> version {self.version}, {self.count_rows():,} rows, "
            f"{len(self.manifest.fragments)} fragments, {self.size_text()}{more}"
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

    def size_text(self) -> str:
        """Return how much the data files of this version take, as text such as "1.5 MiB"."""
        files = (file for fragment in self.manifest.fragments for file in fragment.files)
        size = float(sum(file.file_size_bytes for file in files))
        for unit in ("B", "KiB", "MiB", "GiB"):
            if size < 1024:
                return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
            size /= 1024
        return f"{size:.1f} TiB"


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return escape(text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 3] + "...")
