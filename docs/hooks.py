"""Rank guides above reference pages in the search of the site, and break long names at their dots only."""

from __future__ import annotations

import re
from typing import Any

REFERENCE = (
    "api", "options.md", "types.md", "cli.md", "metadata.md", "procedures.md",
    "differences.md", "architecture.md",
)  # fmt: skip
# Pages on one subject of SQL rank below the guide of the subject.
SUBJECTS, SUBJECT_BOOST = "sql/", 0.7
# An item of a list that begins with the name of an option.
OPTION = re.compile(r"<li>(\s*(?:<p>)?)<code>([^<\n]+)</code>")
# Code in a line of text; blocks of code scroll and need no breaks.
INLINE_CODE = re.compile(r"(?<!<pre>)(?<!</span>)<code>([^<]{12,})</code>")
JOINT_BREAK = r"\1<wbr>"
JOINT = re.compile(r"(?<=[\w)\]])([._/=,]|::)(?=[\w&$*\[({])")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Set how much a page counts in searches, unless the page does so itself."""
    path = page.file.src_uri
    boost = 0.1 if path.startswith(REFERENCE) else SUBJECT_BOOST if path.startswith(SUBJECTS) else 1
    page.meta.setdefault("search", {"boost": boost})
    return markdown


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Give each option an anchor, and let a long name break behind its dots and underscores."""
    if page.file.src_uri == "options.md":
        html = OPTION.sub(_anchor, html)
    return INLINE_CODE.sub(_breakable, html)


def _anchor(item: re.Match[str]) -> str:
    name = re.sub("&[lg]t;", "", item[2])
    return f'<li id="option-{name}">{item[1]}<code>{item[2]}</code>'


def _breakable(code: re.Match[str]) -> str:
    return f"<code>{JOINT.sub(JOINT_BREAK, code[1])}</code>"
