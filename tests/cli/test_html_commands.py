"""A page about a table is whole in itself, tells what the table is, and opens in a browser."""

from __future__ import annotations

import html.parser
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.cli.main import main

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table with deleted rows, an index that misses rows, and names that look like markup."""
    path = tmp_path / "<b>&t"
    rows = pa.table({"id": range(1000), "<script>alert(1)</script>": ["x&y"] * 1000})
    ds = spark_lance.write_dataset(rows, path, max_rows_per_file=300)
    ds.delete("id % 3 = 0").create_scalar_index("id", "BTREE")
    spark_lance.write_dataset(rows.slice(0, 10), path, mode="append")
    return path


class Tags(html.parser.HTMLParser):
    """The tags of a page, which all have to be closed; and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_tells_what_the_table_is(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out.html"
    assert main(["inspect", str(table), "--html", str(page)]) == 0
    assert capsys.readouterr().out == f"wrote {page}\n"
    text = page.read_text()
    tags = Tags(text)
    assert tags.open == []
    assert "script" not in tags.seen
    assert not re.search(r"(?:src|href)=|url\(|https?://(?!www\.w3\.org)", text)
    for words in (
        str(table),
        "676, 334 deleted",
        "5 fragments",
        "0: 200 rows, 33% deleted",
        "<script>alert(1)</script>",
        "id_idx: covers 99% of the rows",
        "compact",
        "index optimize",
        "CREATE TABLE AS SELECT",
    ):
        assert words in tags.text, words
    assert tags.seen.count("rect") == 5 * 2 + 2 + 1


def test_a_table_without_rows_has_a_page_too(tmp_path: Path) -> None:
    spark_lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "t")
    assert main(["inspect", str(tmp_path / "t"), "--html", str(tmp_path / "out.html")]) == 0
    assert Tags((tmp_path / "out.html").read_text()).open == []


def test_the_newest_version_has_a_width_and_a_dropped_index_its_name(tmp_path: Path) -> None:
    path, page = tmp_path / "t", tmp_path / "out.html"
    for first in (0, 10):
        spark_lance.write_dataset(pa.table({"id": range(first, first + 10)}), path, mode="append")
    spark_lance.dataset(path).create_scalar_index("id", "BTREE").drop_index("id_idx")
    assert main(["inspect", str(path), "--html", str(page)]) == 0
    text = page.read_text()
    (rows, _) = re.findall(r'<path d="([^"]+)"', text)
    *_, last_step, end = (float(x) for x in re.findall(r"[HM]([\d.]+)", rows))
    assert end == 850
    assert end - last_step == pytest.approx(840 / 4, abs=0.2)
    operations = [row.split("</td>")[2] for row in text.split("<tr>") if "<td" in row][:3]
    assert [cell.removeprefix("<td>") for cell in operations] == ["DROP INDEX", "CREATE INDEX", "WRITE"]


def test_a_page_that_cannot_be_written(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(table), "--html", str(tmp_path / "none" / "out.html")]) == 2
    assert capsys.readouterr().err.startswith("error: writing ")


@pytest.mark.site
def test_a_browser_shows_the_page(table: Path, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("needs chromium: apt-get install chromium")
    page = tmp_path / "out.html"
    assert main(["inspect", str(table), "--html", str(page)]) == 0
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        opened = browser.new_page()
        errors: list[str] = []
        opened.on("console", lambda said: errors.append(said.text))
        opened.on("pageerror", lambda error: errors.append(str(error)))
        requests: list[str] = []
        opened.on("request", lambda request: requests.append(request.url))
        opened.goto(page.as_uri())
        assert [each.inner_text() for each in opened.locator("h2").all()] == [
            "Versions", "Fragments", "Columns", "Indices", "Advice",
        ]  # fmt: skip
        for chart in opened.locator("svg").all():
            box = chart.bounding_box()
            assert box is not None
            assert box["width"] > 300
            assert box["height"] >= 18
        assert errors == []
        assert requests == [page.as_uri()]
        browser.close()
