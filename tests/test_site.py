"""The site that make docs builds: every page opens in a browser, navigation and search lead somewhere."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.site
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# A folder for pictures of some pages, for those who want to look at them.
PICTURES = os.environ.get("SITE_PICTURES")
SEEN = (
    "index.html",
    "tables.html",
    "api/lance-dataset.html",
    "speed.html",
    "options.html",
    "from/delta.html",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; strict, so that a warning of MkDocs fails."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


class Opened:
    """A tab of the browser, and what went wrong in it."""

    def __init__(self, browser: Any, address: str) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.wrong: list[str] = []
        self._address = address
        self.page.on("console", lambda message: self._note(message.type == "error", message.text))
        self.page.on("pageerror", lambda error: self._note(True, str(error)))
        self.page.on("response", lambda answer: self._note(answer.status >= 400, answer.url))
        self.page.on("request", lambda request: self._note(self._leaves(request.url), request.url))

    def _note(self, wrong: bool, what: str) -> None:
        if wrong:
            self.wrong.append(what)

    def _leaves(self, url: str) -> bool:
        """Return whether a request leaves this machine: the site must work without the network."""
        return not url.startswith((self._address, "data:"))


@pytest.fixture(scope="module")
def opened(address: str) -> Iterator[Opened]:
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield Opened(browser, address)
        browser.close()


def test_every_page_opens_without_an_error(site: Path, address: str, opened: Opened) -> None:
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html") if path.name != "404.html")
    assert len(pages) >= len(list((ROOT / "docs").rglob("*.md")))
    for name in pages:
        opened.page.goto(address + name)
        assert opened.page.locator("h1").count() == 1, name
        broken = "all => all.filter(one => one.naturalWidth === 0).map(one => one.src)"
        assert opened.page.locator("article img").evaluate_all(broken) == [], name
        # Tables and code scroll by themselves; the page does not.
        assert opened.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        if PICTURES and name in SEEN:
            place = Path(PICTURES) / f"{name.replace('/', '-').removesuffix('.html')}.png"
            opened.page.screenshot(path=place)
    assert opened.wrong == []


def test_phones_get_whole_words_and_pictures_that_can_be_read(address: str, opened: Opened) -> None:
    opened.page.set_viewport_size({"width": 390, "height": 800})
    for name in ("index.html", "how.html", "sql.html", "errors.html", "options.html", "api/lance-table.html"):
        opened.page.goto(address + name)
        assert opened.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        widths = opened.page.locator("article p > img").evaluate_all("all => all.map(one => one.width)")
        assert all(width >= 600 for width in widths), name
        # A name without a dot or underscore is on one line of its cell.
        cut = """all => all.filter(one => /^\\w+$/.test(one.textContent) && !one.textContent.includes("_")
            && one.getClientRects().length > 1).map(one => one.textContent)"""
        assert opened.page.locator("article td code").evaluate_all(cut) == [], name
    opened.page.set_viewport_size({"width": 1280, "height": 900})
    assert opened.wrong == []


def test_each_option_has_an_anchor(address: str, opened: Opened) -> None:
    for name in ("version", "mergeSchema", "column.lance.encoding"):
        opened.page.goto(f"{address}options.html#option-{name}")
        assert opened.page.locator(f'[id="option-{name}"]').count() == 1
    assert opened.wrong == []


def test_navigation_leads_through_the_site(address: str, opened: Opened) -> None:
    opened.page.goto(address + "index.html")
    tabs = opened.page.locator("nav.md-tabs a")
    names = [name.strip() for name in tabs.all_inner_texts()]
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert names == re.findall(r"^  - ([^:]+):", navigation, re.MULTILINE)
    for number, name in enumerate(names):
        tabs.nth(number).click()
        opened.page.wait_for_load_state()
        assert opened.page.locator("nav.md-tabs .md-tabs__item--active").inner_text().strip() == name
        assert opened.page.locator("article h1").inner_text()
    assert opened.wrong == []


# Frequent searches, each with the pages that may be the first result.
HEADINGS = {
    "time travel": ("reading.html", "sql/branches.html"),
    "schema evolution": ("writing.html",),
    "exactly once": ("writing.html", "streaming.html"),
    "upsert": ("upserts.html", "runbooks/nightly-upsert.html"),
    "partitions": ("sql/partitions.html",),
    "clustering": ("tables.html",),
    "OPTIMIZE": ("tables.html", "runbooks/upkeep.html"),
    "VACUUM": ("tables.html", "runbooks/upkeep.html"),
    "Databricks": ("deployment.html",),
    "EMR": ("deployment.html",),
    "Kubernetes": ("deployment.html",),
    "getting started": ("start.html",),
}


def test_guides_are_the_first_results_of_searches(site: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("needs node, which runs the search of the site")
    command = ["node", str(ROOT / "tests" / "site_search.js"), str(site), *HEADINGS]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    first = {
        words: (pages or ["none"])[0].partition("#")[0] for words, pages in json.loads(run.stdout).items()
    }
    assert {words: page for words, page in first.items() if page not in HEADINGS[words]} == {}


@pytest.mark.parametrize(
    ("words", "page"), [("vacuum", "upkeep"), ("merge_insert", ""), ("RetryableConflict", "")]
)
def test_the_search_finds_pages(words: str, page: str, address: str, opened: Opened) -> None:
    opened.page.goto(address + "index.html")
    opened.page.locator("input[name=query]").click()
    # The search listens to keys; fill() presses none.
    opened.page.locator("input[name=query]").press_sequentially(words)
    results = opened.page.locator(".md-search-result__item a")
    results.first.wait_for(timeout=30_000)
    links = results.evaluate_all("all => all.map(one => one.href)")
    assert any(page in link for link in links)
    results.first.click()
    opened.page.wait_for_url(links[0].partition("?")[0] + "*")
    opened.page.wait_for_load_state()
    assert words.lower() in opened.page.locator("article").inner_text().lower()
    assert opened.wrong == []
