"""The tables in docs/ that are generated are current, and what they are made of is whole."""

from __future__ import annotations

import importlib.util
import inspect
import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness import Record
from spark_lance import errors
from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
assert SPEC is not None
assert SPEC.loader is not None
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)

PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
# A number with a unit. Outside of generated tables only settings and limits have units.
FIGURE = re.compile(
    r"(?<![\w.])\d[\d.,]*(?: to \d[\d.,]*)? ?"
    r"(?:m?s|µs|seconds?|minutes?|hours?|[KMGT]i?B|bytes|times|percent|%|x|requests?)(?![\w'])"
)
SETTINGS = {
    "deployment.md": ["6 GB"],
    "delta.md": ["24 hours"],
    "erasure.md": ["10 %"],
    "partitions.md": ["8 MiB"],
    "planning.md": ["128 KiB", "64 MB"],
    "scale.md": ["4 GB", "512 MB", "4 GB"],
    "sizing.md": ["1 KB", "100 MB", "10 GB", "512 MB"],
    "stores.md": ["60 s", "125 KB", "1 MiB", "64 MB"],
    "tables.md": ["24 hours", "24 hours"],
}
MOST_WORDS = 30_000


def typed_figures(text: str) -> list[str]:
    """Return the figures with a unit that a page has in its prose and tables, without generated parts."""
    for part in (generate.MARKS, re.compile(r"```.*?```", re.DOTALL), re.compile(r"`[^`]*`")):
        text = part.sub("", text)
    return FIGURE.findall(text)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_measured_figures_are_generated_and_not_typed(path: Path) -> None:
    figures = typed_figures(path.read_text())
    assert figures == SETTINGS.get(path.name, []), "generate it from benchmarks/results, or leave it out"


def test_a_typed_figure_is_noticed() -> None:
    text = "Takes 1.6 ms, 2 to 3 times\n<!-- generated: errors -->\n9 s\n<!-- end -->\n`8 s`, version 2.2"
    assert typed_figures(text) == ["1.6 ms", "2 to 3 times"]


def test_the_pages_can_be_read_in_the_time_of_a_reader() -> None:
    words = sum(len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md"))
    assert words <= MOST_WORDS


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.stem)
def test_tables_of_a_page_are_current(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert generate.filled(text) == text, "make docs-generate"


def test_every_table_is_on_a_page() -> None:
    named = {match[1] for path in generate.pages() for match in generate.MARKS.findall(path.read_text())}
    assert named == set(generate.TABLES)


def test_a_stale_page_is_noticed() -> None:
    text = "before\n<!-- generated: errors -->\nold\n<!-- end -->\nafter\n"
    assert "`TableNotFoundError`" in generate.filled(text)
    assert generate.filled(text) != text


def test_errors_are_all_listed_with_cause_and_remedy() -> None:
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.LanceError) and not name.startswith("_")
    }
    assert set(errors.__all__) == set(classes)
    for name, kind in classes.items():
        sentence = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        assert re.fullmatch(r"[^:]+: .+\.", sentence), f"{name}: the docstring begins with `cause: remedy.`"
        assert kind.repeatable in (True, False, None)
    assert errors.RetryableConflictError.repeatable
    assert errors.CommitOutcomeUnknownError.repeatable is None


def kept(case: str, metric: str, ours: float) -> Record:
    return Record(
        "bench_large",
        case,
        metric,
        "",
        ours,
        None,
        "",
        None,
        "A machine",
        0.5,
        {"python": "3.11"},
        "2026-01-02T",
    )


def test_figures_of_large_tables_are_those_that_were_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_records", list)
    assert "bench-large" in "\n".join(generate.large_tables())
    records = [
        kept("100,000,000 flat rows: scan", "time", 50.0),
        kept("10,000,000 flat rows: scan", "time", 4.0),
        kept("10,000,000 flat rows: scan", "peak memory", 191.6),
        kept("650,000 vectors: index", "time", 13.0),
    ]
    monkeypatch.setattr(generate, "_records", lambda: records)
    lines = list(generate.large_tables())
    assert "| scan | 4 | 192 | 50 | 0 |" in lines
    assert "| index | 13 | 0 |" in lines
    assert next(line for line in lines if line.startswith("| step")).count("10,000,000 rows") == 2
    assert "A machine; load at most 0.5" in lines[-1]


def test_repeatable_figures_of_peers_replace_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (
        replace(kept("update", "time", 2.0), bench=bench, peer=4.0, peer_name=name, ratio=2.0)
        for bench, name in (("beside_iceberg", "Iceberg"), ("bench_peers", "Delta 4.4.0, merge-on-read"))
    )
    monkeypatch.setattr(generate, "_records", lambda: [old])
    assert next(generate.peers()) == "| work | spark_lance | Iceberg |"
    monkeypatch.setattr(generate, "_records", lambda: [old, new])
    assert next(generate.peers()) == "| work | spark_lance | Delta 4.4.0, merge-on-read |"


def test_steps_of_large_tables_are_those_that_are_measured() -> None:
    source = (ROOT / "benchmarks" / "bench_large.py").read_text()
    assert set(re.findall(r'steps\("([^"]+)"', source)) == set(generate._STEPS_OF_LARGE)
    assert set(re.findall(r'\("(flat rows|vectors)", options', source)) == set(generate._KINDS_OF_LARGE)


def test_pictures_of_benchmarks_are_shown_with_what_they_measure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    records = [
        replace(kept("a", "time", 1.0), bench=name) for name in ("bench_size", "bench_commit", "bench")
    ]
    monkeypatch.setattr(generate, "_records", lambda: records)
    monkeypatch.setattr(generate, "PICTURES", tmp_path)
    for name in ("bench_size", "bench_size_flights", "bench_plan"):
        (tmp_path / f"{name}.svg").touch()
    text = "\n".join(generate.figures())
    assert re.findall(r"\(pictures/(\w+)\.svg\)", text) == ["bench_size", "bench_size_flights"]
    assert "(`make bench-size`)" in text
