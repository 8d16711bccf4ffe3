"""The README and the guides tell the truth: their Python blocks run, their tables are those of the code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
GUIDES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "```python" in path.read_text()]
README_BYTES = 10_000
PLACE = "/tmp/lance-readme"


def blocks_of(text: str) -> list[str]:
    """Return the Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def spark(later_sessions: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session that pages get when they ask for one, and change as they like."""
    own = later_sessions.newSession()
    monkeypatch.setattr(type(own), "_instantiatedSession", own)
    return own


def test_the_first_page_stays_a_page() -> None:
    assert len(README.encode()) < README_BYTES
    assert "\nmake demo " in README
    assert "\nmake test " in README


def test_python_blocks_run_in_order(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    blocks = blocks_of(README)
    assert PLACE in "".join(blocks)
    for block in blocks:
        exec(compile(block.replace(PLACE, str(tmp_path)), "README.md", "exec"), names)
    printed = capsys.readouterr().out.split()
    assert printed[0] == "143"
    assert "2000" in printed
    assert "1000" in printed
    assert names["ds"].count_rows() == 3
    assert names["nearest"].num_rows == 3
    assert set(names["nearest"]["id"].to_pylist()) <= set(range(990, 1010))
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_python_blocks_of_guides_run_in_order(guide: Path, spark: SparkSession, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks_of(guide.read_text()):
        exec(compile(block.replace(PLACE, str(tmp_path)), guide.name, "exec"), names)
    assert names
