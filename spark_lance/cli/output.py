"""Output of commands: aligned tables for people, JSON for programs, progress bars on terminals.

On a terminal, output has colours, and tables are cut to the width of the window.
Other output is plain text. Values are never interpreted as markup.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.table import Column, Table
from rich.text import Text

from spark_lance.errors import LanceError, StoreError
from spark_lance.io.display import size_text
from spark_lance.io.failures import local_failure

_NUMBERS = (int, float)
_WIDEST = 80
# Columns are dropped rather than cut below this width.
_NARROWEST = 12
_GAP = 2
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNBOUNDED = 1 << 20
_PATIENCE = 1.0


def visible(text: str) -> str:
    """Return a text with control characters as escapes that terminals do not interpret and JSON does.

    Escapes ASCII and C1 controls (such as ESC and CSI), characters that change the text direction, and
    invisible characters. Keeps line ends and tabs.
    """
    return _INVISIBLE.sub(lambda match: "".join(f"\\u{unit:04x}" for unit in _utf16_units(match[0])), text)


def _utf16_units(mark: str) -> Iterable[int]:
    data = mark.encode("utf-16-be", "surrogatepass")
    return (int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))


def say(line: str = "") -> None:
    """Print a line."""
    sys.stdout.write(f"{visible(line)}\n")


def write_error(target: str, error: OSError) -> OSError:
    """Return the error for a failed write of a file, with advice."""
    if isinstance(error, FileNotFoundError):
        if not Path(target).parent.is_dir():
            return StoreError(f"writing {target}: its folder does not exist: create it first")
        return StoreError(f"writing {target}: files cannot be created in its folder: choose another folder")
    if isinstance(error, IsADirectoryError):
        return StoreError(f"writing {target}: it is a folder: add a file name")
    failure = local_failure(error, f"writing {target}")
    return (
        failure
        if isinstance(failure, LanceError)
        else StoreError(f"writing {target}: {error.strerror or error}")
    )


def print_table(names: Sequence[str], rows: Iterable[Sequence[object]], *, wide: bool = False) -> None:
    """Print rows under column names, numbers right-aligned.

    On a terminal, the table fits the window width. Columns that do not fit are listed below it.

    Args:
        names: column names.
        rows: values of each row.
        wide: whether to print all columns in full width.
    """
    console = _console()
    names = [_cell(name, _UNBOUNDED) for name in names]
    cells = [list(row) for row in rows]
    texts = [[_cell(value, _UNBOUNDED if wide else _WIDEST) for value in row] for row in cells]
    bounded = console.is_terminal and not wide
    widths = [max([cell_len(name), *(cell_len(row[at]) for row in texts)]) for at, name in enumerate(names)]
    column_count = _count_fitting_columns(widths, console.width) if bounded else len(names)
    if bounded:
        widths = _share_width(widths[:column_count], console.width - _GAP * (column_count - 1))
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for at, name in enumerate(names[:column_count]):
        right = bool(cells) and all(isinstance(row[at], _NUMBERS) or row[at] is None for row in cells)
        table.add_column(
            Text(name),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            width=widths[at],
        )
    for row in texts:
        table.add_row(*(Text(text) for text in row[:column_count]))
    if not bounded:
        console = _console(sum(widths) + _GAP * len(widths))
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        sys.stdout.write(
            f"{line.rstrip()}\n"
        )  # The text has colour codes; the cells have no control characters.
    if column_count < len(names):
        say(f"not shown: {', '.join(names[column_count:])} (--wide shows all)")


def _count_fitting_columns(widths: Sequence[int], width: int) -> int:
    """Return the number of columns that fit into a width if each one keeps at least `_NARROWEST`."""
    used = 0
    for count, each in enumerate(widths):
        used += min(each, _NARROWEST) + (_GAP if count else 0)
        if used > width:
            return max(1, count)
    return len(widths)


def _share_width(widths: Sequence[int], room: int) -> list[int]:
    """Return the width of each column. Columns that are too wide share the remaining width equally."""
    result = list(widths)
    for left, at in zip(
        range(len(widths), 0, -1), sorted(range(len(widths)), key=widths.__getitem__), strict=True
    ):
        result[at] = max(1, min(widths[at], room // left))
        room -= result[at]
    return result


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print one line per name and value. Pairs without a value are skipped."""
    console = _console()
    cells = [(_cell(name), value) for name, value in pairs]
    filled = [(name, _cell(value, _WIDEST * 4)) for name, value in cells if value not in (None, "", (), [])]
    width = max((len(name) for name, _ in filled), default=0)
    for name, text in filled:
        line = Text(name.ljust(width), style="bold").append(f"  {text}", style="not bold")
        console.print(line, soft_wrap=True)


def _console(width: int | None = None) -> Console:
    """Return a console on the current standard output, which tests and pipes may have replaced."""
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def _cell(value: object, widest: int = _WIDEST) -> str:
    """Return a value as text on one line."""
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
    elif isinstance(value, bytes):
        text = f"{len(value)} bytes"
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key}={_inner(item, widest)}" for key, item in value.items()) or "-"
    elif isinstance(value, (list, tuple)):
        text = ", ".join(_inner(item, widest) for item in value) or "-"
    else:
        text = str(value)
    text = "".join(mark if mark.isprintable() else "?" for mark in text.replace("\n", " "))
    return text if len(text) <= widest else text[: widest - 1] + "…"


def _inner(value: object, widest: int) -> str:
    """Return a nested value as text, with brackets around lists and maps."""
    text = _cell(value, widest)
    if isinstance(value, Mapping):
        return f"{{{text if value else ''}}}"
    return f"[{text if value else ''}]" if isinstance(value, (list, tuple)) else text


def as_json(value: object, *, indent: int | None = 2) -> str:
    """Return a value as JSON. Supports nested dataclasses, times (ISO 8601) and bytes (base64)."""
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=indent is not None)


def _plain(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


class _Amount(ProgressColumn):
    """Progress column with completed amount, total and rate."""

    def render(self, task: Task) -> Text:
        """Return the text for the progress of a step."""
        number = size_text if task.fields["unit"] == "bytes" else "{:,.0f}".format
        text = number(task.completed)
        text += f" of {number(task.total)}" if task.total else ""
        text += "" if task.fields["unit"] == "bytes" else f" {task.fields['unit']}"
        return Text(f"{text}, {number(task.speed)}/s" if task.speed else text)


class Progress:
    """A progress bar with rate and remaining time, for work that takes more than a second.

    A context manager. The bar disappears at the end. If the stream is not a terminal, nothing is printed.

    Args:
        step: name of the first step.
        stream: output stream; standard error by default.
        patience: seconds before the bar appears.
    """

    def __init__(self, step: str, stream: TextIO | None = None, patience: float = _PATIENCE) -> None:
        self._step = step
        stream = stream if stream is not None else sys.stderr
        self._bars: Bars | None = None
        if stream.isatty():
            self._bars = Bars(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                BarColumn(bar_width=None),
                TaskProgressColumn(show_speed=False, table_column=Column(no_wrap=True)),
                _Amount(Column(no_wrap=True)),
                TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
                console=Console(file=stream, highlight=False, markup=False, emoji=False),
                transient=True,
                expand=True,
            )
        self._task = None if self._bars is None else self._bars.add_task(visible(step), total=None, unit="")
        self._lock = threading.Lock()
        self._timer = threading.Timer(patience, self._start)
        self._timer.daemon = True

    def __call__(self, step: str, amount: int, total: int, unit: str) -> None:
        """Show the progress of a step."""
        if self._bars is None or self._task is None:
            return
        if step != self._step:
            self._step = step
            self._bars.reset(self._task, description=visible(step), total=total or None, unit=unit)
        self._bars.update(self._task, completed=amount, total=total or None, unit=unit)

    def _start(self) -> None:
        with self._lock:
            if self._bars is not None and not self._timer.finished.is_set():
                self._bars.start()

    def __enter__(self) -> Progress:
        """Start the timer that shows the bar."""
        if self._bars is not None:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        with self._lock:
            self._timer.cancel()
        if self._bars is not None:
            self._bars.stop()
