"""Draws the diagrams of these pages: docs/pictures/NAME.boxes, text, becomes NAME.svg.

    python docs/draw.py           draws them all
    python docs/draw.py --check   says which pictures are not current, and fails

A source has one thing a line, in a grid of columns and rows (a row is 40 pixels high, a column 120 wide):

    text   COLUMN ROW TEXT                        a line of text
    box    NAME COLUMN ROW WIDTH HEIGHT KIND TEXT   a box; `|` parts its lines; KIND is a key of COLOURS
    arrow  FROM TO TEXT                           from box to box, with a text or without

The pictures carry their own colours, which can be read on light and on dark pages.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

PICTURES = Path(__file__).resolve().parent / "pictures"
COLUMN, ROW, MARGIN = 120, 40, 12
COLOURS = {
    "plain": ("#f5f5f5", "#757575"),
    "program": ("#e8eaf6", "#3949ab"),
    "version": ("#fff8e1", "#f9a825"),
    "data": ("#e8f5e9", "#388e3c"),
    "gone": ("#ffebee", "#c62828"),
    "index": ("#f3e5f5", "#7b1fa2"),
}
FONT = 'font-family="system-ui, sans-serif" font-size="13"'


@dataclass(frozen=True)
class Box:
    """A box, in pixels."""

    left: float
    top: float
    width: float
    height: float

    @property
    def middle(self) -> tuple[float, float]:
        """The middle of the box."""
        return self.left + self.width / 2, self.top + self.height / 2

    def edge_towards(self, other: Box) -> tuple[float, float]:
        """Return where a line to the middle of another box leaves this one."""
        (x, y), (to_x, to_y) = self.middle, other.middle
        across, down = to_x - x, to_y - y
        scale = min(
            self.width / 2 / abs(across) if across else float("inf"),
            self.height / 2 / abs(down) if down else float("inf"),
        )
        return x + across * scale, y + down * scale


def draw(source: str) -> str:
    """Return the picture of a source."""
    boxes: dict[str, Box] = {}
    shapes: list[str] = []
    written: list[float] = []
    lines: list[str] = []
    for line in filter(None, (line.split("#")[0].strip() for line in source.splitlines())):
        kind, rest = line.split(maxsplit=1)
        if kind == "text":
            column, row, text = rest.split(maxsplit=2)
            x, y = MARGIN + float(column) * COLUMN, MARGIN + float(row) * ROW + 16
            written.append(x + 7 * len(text))
            shapes.append(f'<text x="{x:g}" y="{y:g}" {FONT} fill="#757575">{escape(text)}</text>')
        elif kind == "box":
            name, column, row, width, height, colour, text = rest.split(maxsplit=6)
            box = Box(
                MARGIN + float(column) * COLUMN,
                MARGIN + float(row) * ROW,
                float(width) * COLUMN - 16,
                float(height) * ROW - 10,
            )
            boxes[name] = box
            shapes.append(_box(box, colour, text))
        else:
            begin, end, *words = rest.split(maxsplit=2)
            lines.append(_arrow(boxes[begin], boxes[end], words[0] if words else ""))
    wide = max([box.left + box.width for box in boxes.values()] + written) + MARGIN
    high = max(box.top + box.height for box in boxes.values()) + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" '
            f'width="{wide:g}" height="{high:g}" role="img">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0 0L8 4L0 8z" fill="#757575"/></marker></defs>',
            *lines,
            *shapes,
            "</svg>\n",
        ]
    )


def _box(box: Box, colour: str, text: str) -> str:
    fill, stroke = COLOURS[colour]
    rows = text.split("|")
    x, y = box.middle
    top = y - (len(rows) - 1) * 8.5 + 4.5
    texts = "".join(
        f'<text x="{x:g}" y="{top + number * 17:g}" {FONT} text-anchor="middle" fill="#212121">'
        f"{escape(part.strip())}</text>"
        for number, part in enumerate(rows)
    )
    return (
        f'<rect x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" height="{box.height:g}" rx="6" '
        f'fill="{fill}" stroke="{stroke}"/>{texts}'
    )


def _arrow(begin: Box, end: Box, text: str) -> str:
    (x, y), (to_x, to_y) = begin.edge_towards(end), end.edge_towards(begin)
    line = (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="#757575" '
        'stroke-width="1.5" marker-end="url(#head)"/>'
    )
    if not text:
        return line
    words = f'<text x="{(x + to_x) / 2 + 6:.1f}" y="{(y + to_y) / 2 - 4:.1f}" {FONT} fill="#757575">'
    return f"{line}{words}{escape(text)}</text>"


def main() -> int:
    """Draw the pictures, or check them."""
    stale = 0
    for source in sorted(PICTURES.glob("*.boxes")):
        picture = source.with_suffix(".svg")
        text = draw(source.read_text())
        if picture.exists() and picture.read_text() == text:
            continue
        stale += 1
        if "--check" in sys.argv:
            print(f"{picture.name} is not current: make docs-generate")
        else:
            picture.write_text(text)
            print(f"drew {picture.name}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
