"""Links between pages lead somewhere, all pages are in the navigation, pictures are as their sources."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "decisions").glob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAVIGATION = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]


def prose(path: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings of a page, as both GitHub and the site make them."""
    results = set()
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE):
        text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
        results.add(text.replace(" ", "-"))
    return results


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        # A site knows only what is in its folder.
        assert not page.is_relative_to(ROOT / "docs") or target.is_relative_to(ROOT / "docs"), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"([\w/-]+\.md)$", NAVIGATION, re.MULTILINE)
    paths = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(map(str, paths))


def test_pictures_are_as_their_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("docs_draw", ROOT / "docs" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    draw = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "docs_draw", draw)
    spec.loader.exec_module(draw)
    sources = sorted(draw.PICTURES.glob("*.boxes"))
    assert len(sources) >= 4
    for source in sources:
        assert source.with_suffix(".svg").read_text() == draw.draw(source.read_text()), "make docs-generate"


def test_pictures_are_shown() -> None:
    shown = {
        Path(link).name for page in PAGES for link in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text())
    }
    assert {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")} == shown
