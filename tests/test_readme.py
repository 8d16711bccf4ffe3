"""The README and the guides tell the truth: their Python blocks run, their tables are those of the code."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import interpreted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
GUIDES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "```python" in path.read_text()]
README_BYTES = 8_000
PLACE = "/tmp/lance-readme"


def steps_of(text: str) -> list[tuple[str, str | None]]:
    """Return the Python blocks of a page, each with the output that follows it, if any."""
    result = re.findall(r"```python\n(.*?)```(?:\s*```output\n(.*?)```)?", text, flags=re.DOTALL)
    return [(code, output or None) for code, output in result]


def run_steps(text: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the Python blocks of a page in order, compare what they print, and return their names."""
    names: dict[str, Any] = {}
    for code, output in steps_of(text):
        capsys.readouterr()
        exec(compile(code.replace(PLACE, str(folder)), name, "exec"), names)
        printed = capsys.readouterr().out.replace(str(folder), PLACE)
        if output is not None:
            alike = doctest.OutputChecker().check_output(output.strip(), printed.strip(), doctest.ELLIPSIS)
            assert alike, f"{name} shows\n{output}\nand prints\n{printed}"
    return names


@pytest.fixture
def spark(later_sessions: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """A session that pages get when they ask for one, and change as they like."""
    own = interpreted(later_sessions.newSession())
    monkeypatch.setattr(type(own), "_instantiatedSession", own)
    return own


def test_the_first_page_stays_a_page() -> None:
    assert len(README.encode()) < README_BYTES
    assert "\nmake demo " in README
    assert "\nmake test " in README


def test_readme_shows_the_example_of_the_home_page() -> None:
    home = (ROOT / "docs" / "index.md").read_text()
    assert steps_of(README) == steps_of(home)
    assert steps_of(README)[0][1]


def test_blocks_of_output_follow_code() -> None:
    for page in GUIDES:
        text = page.read_text()
        assert text.count("```output") == len(re.findall(r"```py\n[^`]*```\s*```output", text)) + sum(
            output is not None for _, output in steps_of(text)
        ), page


def test_the_program_for_pytorch_uses_names_that_exist() -> None:
    """`make test-torch` runs it; without PyTorch only its names and arguments can be checked."""
    (block,) = re.findall(r"```py\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), flags=re.DOTALL)
    module = ast.parse((ROOT / "spark_lance" / "training" / "torch.py").read_text())
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    own = [(call, classes.get(call.func.id)) for call in calls if isinstance(call.func, ast.Name)]
    assert any(owner for _, owner in own)
    for call, owner in own:
        if owner is not None:
            functions = {each.name: each for each in owner.body if isinstance(each, ast.FunctionDef)}
            arguments = functions["__init__"].args
            names = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
            assert {keyword.arg for keyword in call.keywords} <= names
            assert "set_epoch" in functions


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_python_blocks_of_guides_run_in_order(
    guide: Path, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_steps(guide.read_text(), guide.name, tmp_path, capsys)
