"""How commands show what they found: aligned tables for people, JSON for programs, progress on terminals."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, TextIO

__all__ = ["Progress", "as_json", "print_pairs", "print_table", "say", "size_text"]

_NUMBERS = (int, float)
_WIDEST = 80
_BAR = 30
_PAUSE = 0.1


def say(line: str = "") -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def size_text(count: int | None) -> str:
    """Return a number of bytes for people, such as `1.5 MiB`."""
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def print_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under their names, numbers to the right."""
    given = [list(row) for row in rows]
    texts = [[_cell(value) for value in row] for row in given]
    widths = [max([len(name), *(len(row[place]) for row in texts)]) for place, name in enumerate(names)]
    right = [
        bool(given) and all(isinstance(row[place], _NUMBERS) or row[place] is None for row in given)
        for place in range(len(names))
    ]
    for row in [list(names), *texts]:
        cells = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(row, widths, right, strict=True)
        ]
        say("  ".join(cells).rstrip())


def print_pairs(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names with their values, a line for each; those without a value are left out."""
    known = [(name, _cell(value, _WIDEST * 4)) for name, value in pairs if value not in (None, "", (), [])]
    width = max((len(name) for name, _ in known), default=0)
    for name, text in known:
        say(f"{name.ljust(width)}  {text}")


def _cell(value: object, widest: int = _WIDEST) -> str:
    """Return a value as text on one line."""
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key}={_cell(item)}" for key, item in value.items()) or "-"
    elif isinstance(value, (list, tuple)):
        text = ", ".join(_cell(item) for item in value) or "-"
    else:
        text = str(value)
    text = "".join(mark if mark.isprintable() else "?" for mark in text.replace("\n", " "))
    return text if len(text) <= widest else text[: widest - 1] + "…"


def as_json(value: object) -> str:
    """Return a value, dataclasses inside it too, as JSON; times in ISO 8601."""
    return json.dumps(value, indent=2, default=_plain)


def _plain(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)


class Progress:
    """A progress bar of bytes on a terminal; nothing if the output is not a terminal."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream if stream is not None else sys.stderr
        self._on = self._stream.isatty()
        self._next = 0.0

    def __call__(self, done: int, total: int) -> None:
        """Show how much is done; not more often than people can see."""
        now = time.monotonic()
        if not self._on or (now < self._next and done < total):
            return
        self._next = now + _PAUSE
        share = done / total if total else 1.0
        bar = ("#" * int(share * _BAR)).ljust(_BAR, ".")
        text = f"\r{self._what} [{bar}] {share:4.0%} of {size_text(total)}"
        self._stream.write(text)
        self._stream.flush()

    def finish(self) -> None:
        """Take the bar away."""
        if self._on:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
