"""Rank guides above reference pages in the search of the site."""

from __future__ import annotations

from typing import Any

REFERENCE = (
    "api", "options.md", "types.md", "cli.md", "metadata.md",
    "differences.md", "architecture.md",
)  # fmt: skip


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Set how much a page counts in searches, unless the page does so itself."""
    path = page.file.src_uri
    boost = 0.1 if path.startswith(REFERENCE) else 1
    page.meta.setdefault("search", {"boost": boost})
    return markdown
