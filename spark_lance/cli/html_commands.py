"""The page of `inspect --html`: one HTML file without external scripts, fonts or images.

This module writes the charts as SVG. It escapes all text from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from spark_lance.cli.commands import Arguments
from spark_lance.cli.inspect_commands import advice_for
from spark_lance.cli.inspect_commands import inspect as show
from spark_lance.cli.opening import open_table
from spark_lance.cli.output import Progress, say, write_error
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.io.display import cell_text, count_text, counts_text, size_text
from spark_lance.io.progress import reporting
from spark_lance.release import RELEASE
from spark_lance.table.metadata import metadata_table
from spark_lance.table.metadata.column_sizes import column_sizes
from spark_lance.table.metadata.detail import table_detail

_VERSIONS = 200
_FRAGMENTS = 200
_WIDTH, _HEIGHT, _BAR = 860, 160, 18
_COLOURS = ("#5c6bc0", "#c62828", "#388e3c", "#f9a825")

_STYLE = """
:root { color-scheme: light dark; --line: #9e9e9e55; --soft: #9e9e9e22 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; overflow-wrap: anywhere } h2 { font-size: 1.15rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100%; font-size: 13px }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: break-word }
th:last-child, td:last-child { overflow-wrap: anywhere }
td.number, th.number { text-align: right; white-space: nowrap }
dl { display: grid; grid-template-columns: 10rem 1fr; gap: .1rem 1rem } dt { font-weight: 600 }
dd { margin: 0; overflow-wrap: anywhere }
svg { width: 100%; min-width: 640px; height: auto; background: var(--soft) }
.wide { overflow-x: auto }
/* A phone shows the end of a chart first: the newest version. */
.newest { overflow-x: auto; direction: rtl } .newest > svg { direction: ltr }
@media (max-width: 600px) { dl { grid-template-columns: 1fr } dd { margin-bottom: .4rem } }
svg text { fill: currentColor; font-size: 12px }
code { background: var(--soft); padding: 0 .2rem } footer { margin-top: 3rem; font-size: 12px; opacity: .7 }
"""

Numbers = Sequence[float]


def html_page(dataset: LanceDataset, release: str) -> str:
    """Return an HTML page about a version: version history, fragments, columns, indexes and advice.

    Args:
        dataset: the version.
        release: the release of this program, for the footer.

    Raises:
        FormatError, UnsupportedFormatError: a manifest or the footer of a data file cannot be read.
    """
    detail = table_detail(dataset.snapshot)
    title = escape(detail.location)
    parts = [
        f"<h1>{title}</h1>",
        _pairs(
            [
                ("version", f"{detail.version}, committed at {detail.last_modified:%F %T} UTC"),
                ("branch", detail.branch),
                ("description", detail.description),
                ("rows", f"{detail.num_rows:,}, {detail.num_deleted_rows:,} deleted"),
                ("files", f"{detail.num_files:,} in {count_text(detail.num_fragments, 'fragment')}"),
                ("size", size_text(detail.size_bytes)),
                ("file version", detail.data_storage_version),
                ("row ids", "stable" if detail.stable_row_ids else "addresses"),
                ("primary key", ", ".join(detail.primary_key)),
                ("features", ", ".join(detail.writer_features)),
                ("config", ", ".join(f"{key}={value}" for key, value in detail.properties.items())),
            ]
        ),
        *_versions(dataset),
        *_fragments(dataset),
        *_columns(dataset),
        *_indices(dataset, detail.num_rows),
        *_advice(dataset),
        f"<footer>spark-lance {escape(release)}</footer>",
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _versions(dataset: LanceDataset) -> Iterable[str]:
    """Yield charts of the rows and bytes of each version, and a table of operations."""
    versions = metadata_table("versions").to_arrow(dataset.snapshot, ["version", "rows", "bytes"]).to_pylist()
    rows = sorted(versions, key=lambda row: row["version"])
    history = metadata_table("history").to_arrow(
        dataset.snapshot, ["version", "timestamp", "operation", "operationMetrics"], limit=_VERSIONS
    )
    yield f"<h2>Versions</h2><p>{len(rows):,} versions.</p>"
    if len(rows) > 1:
        numbers = [row["version"] for row in rows]
        yield _line_chart("rows", numbers, [row["rows"] or 0 for row in rows], _COLOURS[0], "{:,.0f}".format)
        yield _line_chart("bytes", numbers, [row["bytes"] or 0 for row in rows], _COLOURS[2], size_text)
    yield _table(
        ("version", "committed at", "operation", "metrics"),
        [
            (
                row["version"],
                f"{row['timestamp']:%F %T}" if row["timestamp"] else "",
                row["operation"],
                counts_text(row["operationMetrics"] or ()),
            )
            for row in history.to_pylist()
        ],
    )


def _fragments(dataset: LanceDataset) -> Iterable[str]:
    """Yield one bar per fragment: its rows, with deleted rows in red."""
    names = ["id", "rows", "deleted_rows", "bytes"]
    fragments = metadata_table("fragments").to_arrow(dataset.snapshot, names, limit=_FRAGMENTS).to_pylist()
    if not fragments:
        return
    total = len(dataset.manifest.fragments)
    first = f"; the first {len(fragments)} are shown" if total > len(fragments) else ""
    yield f"<h2>Fragments</h2><p>{total:,} fragments{first}. Deleted rows are red.</p>"
    most = max((row["rows"] or 0) + (row["deleted_rows"] or 0) for row in fragments) or 1
    bars = []
    for number, row in enumerate(fragments):
        live, deleted = row["rows"] or 0, row["deleted_rows"] or 0
        share = f", {deleted / (live + deleted):.0%} deleted" if deleted else ""
        text = f"{row['id']}: {live:,} rows{share}, {size_text(row['bytes'])}"
        bars.append(_bar(number, [(live / most, _COLOURS[0]), (deleted / most, _COLOURS[1])], text))
    yield _bars(bars)


def _columns(dataset: LanceDataset) -> Iterable[str]:
    """Yield one bar per column with its size in bytes, and a table of encodings."""
    columns = column_sizes(dataset.snapshot)
    most = max((column.bytes for column in columns), default=0) or 1
    rows = max(dataset.snapshot.live_rows(), 1)
    yield "<h2>Columns</h2>"
    yield _bars(
        [
            _bar(
                number,
                [(column.bytes / most, _COLOURS[2])],
                f"{column.name}: {size_text(column.bytes)}, {column.bytes / rows:,.1f} bytes per row",
            )
            for number, column in enumerate(columns)
        ]
    )
    yield _table(
        ("column", "type", "pages", "encodings"),
        [
            (
                column.name,
                column.type or "unknown",
                "" if column.pages is None else column.pages,
                "; ".join(f"{count} of {names}" for names, count in column.encodings.items()),
            )
            for column in columns
        ],
    )


def _indices(dataset: LanceDataset, rows: int) -> Iterable[str]:
    """Yield the indexes with the fraction of rows that they cover."""
    indices = [index for index in dataset.describe_indices() if index.fields]
    yield "<h2>Indexes</h2>"
    if not indices:
        yield "<p>None.</p>"
        return
    yield _bars(
        [
            _bar(
                number, [((index.num_rows_indexed or 0) / max(rows, 1), _COLOURS[3])], _coverage(index, rows)
            )
            for number, index in enumerate(indices)
        ]
    )
    yield _table(
        ("index", "type", "columns", "segments", "size"),
        [
            (
                index.name,
                index.index_type,
                ", ".join(index.field_names),
                len(index.segments),
                size_text(index.total_size_bytes),
            )
            for index in indices
        ],
    )


def _coverage(index: object, rows: int) -> str:
    indexed_rows = getattr(index, "num_rows_indexed", None)
    share = "an unknown fraction" if indexed_rows is None else f"{indexed_rows / max(rows, 1):.0%}"
    return f"{getattr(index, 'name', '')}: covers {share} of the rows"


def _advice(dataset: LanceDataset) -> Iterable[str]:
    yield "<h2>Advice</h2>"
    lines = [
        f"<li><code>{escape(each.typed)}</code>: {escape(each.reason)}</li>" for each in advice_for(dataset)
    ]
    yield f"<ul>{''.join(lines)}</ul>" if lines else "<p>Nothing to do.</p>"


def _pairs(pairs: Iterable[tuple[str, str | None]]) -> str:
    lines = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs if value]
    return f"<dl>{''.join(lines)}</dl>"


def _table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = [list(row) for row in rows]
    numbers = [bool(cells) and all(isinstance(row[at], int) for row in cells) for at in range(len(names))]
    marks = [' class="number"' if number else "" for number in numbers]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for name, mark in zip(names, marks, strict=True))
    lines = [
        "".join(
            f"<td{mark}>{escape(cell_text(cell) if mark else str(cell))}</td>"
            for cell, mark in zip(row, marks, strict=True)
        )
        for row in cells
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(number: int, shares: Sequence[tuple[float, str]], text: str) -> str:
    """Return an SVG bar: colored segments, given as fractions of the width, and a text."""
    left, top = 0.0, number * _BAR
    pieces = []
    for share, colour in shares:
        width = share * _WIDTH
        pieces.append(
            f'<rect x="{left:.1f}" y="{top + 2}" width="{width:.1f}" height="{_BAR - 4}" fill="{colour}" '
            'fill-opacity="0.55"/>'
        )
        left += width
    return f'{"".join(pieces)}<text x="6" y="{top + _BAR - 5}">{escape(text)}</text>'


def _bars(bars: Sequence[str]) -> str:
    height = len(bars) * _BAR
    body = "".join(bars)
    size = f'width="{_WIDTH}" height="{height}"'
    return f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {height}" {size}>{body}</svg></div>'


def _line_chart(name: str, xs: Numbers, ys: Numbers, colour: str, format_value: object) -> str:
    """Return a step chart: each version has one step, up to the next version."""
    assert callable(format_value)
    first, last, most = xs[0], xs[-1], max(ys) or 1
    steps = last - first + 1  # The newest version has a step as wide as the others.
    points = []
    for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
        across = (x - first) / steps * (_WIDTH - 20) + 10
        down = _HEIGHT - 20 - y / most * (_HEIGHT - 30)
        if at:
            points.append(f"H{across:.1f}")
        points.append(f"{'V' if at else f'M{across:.1f} '}{down:.1f}")
    points.append(f"H{_WIDTH - 10}")
    return (
        f"<p>{escape(name)}: at most {escape(format_value(most))}</p>"
        f'<div class="newest"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}">'
        f'<path d="{"".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        f'<text x="10" y="{_HEIGHT - 5}">version {first}</text>'
        f'<text x="{_WIDTH - 10}" y="{_HEIGHT - 5}" text-anchor="end">version {last}</text></svg></div>'
    )


def inspect(arguments: Arguments) -> int:
    """Show a table, or write an HTML page about it with `--html`."""
    if arguments.html is None:
        return show(arguments)
    dataset = open_table(arguments)
    with Progress("reading files") as progress, reporting(progress):
        text = html_page(dataset, RELEASE)
    try:
        Path(arguments.html).write_text(text, encoding="utf-8")
    except OSError as error:
        raise write_error(arguments.html, error) from error
    say(f"wrote {arguments.html}")
    return 0
