"""Text that is cut into runs of letters, or into the words of a dictionary, as pylance does it."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_lance.datasets.dataset import LanceDataset, write_dataset
from spark_lance.errors import OptionError
from spark_lance.index.text import tokenizer
from spark_lance.index.text.tokenizer import MODEL_HOME, ngrams
from spark_lance.io.user_cache import process_folder, user_cache

LETTERS = st.text("ab \N{LATIN SMALL LETTER E WITH ACUTE}\N{HIRAGANA LETTER A}\U0001f600", max_size=8)


def by_hand(texts: list[str | None], shortest: int, longest: int, prefix_only: bool) -> list[tuple[int, str]]:
    return sorted(
        (number, text[start : start + size])
        for number, text in enumerate(texts)
        if text is not None
        for size in range(shortest, longest + 1)
        for start in range(1 if prefix_only else len(text))
        if start + size <= len(text)
    )


@given(st.lists(st.none() | LETTERS, max_size=6), st.integers(1, 3), st.integers(0, 2), st.booleans())
@example([], 3, 0, False)
@example([None, ""], 1, 0, True)
def test_runs_of_letters(texts: list[str | None], shortest: int, more: int, prefix_only: bool) -> None:
    result, owners = ngrams(pa.array(texts, pa.string()), shortest, shortest + more, prefix_only)
    assert sorted(zip(owners.tolist(), result.to_pylist(), strict=True)) == by_hand(
        texts, shortest, shortest + more, prefix_only
    )
    assert owners.tolist() == sorted(owners.tolist())


def answers(ds: Any, query: str) -> list[tuple[str, float]]:
    rows = ds.to_table(columns=["t", "_score"], full_text_query=query, limit=99).to_pylist()
    return sorted((row["t"], row["_score"]) for row in rows)


def close(found: list[tuple[str, float]], expected: list[tuple[str, float]]) -> bool:
    """Whether the same texts have the same scores, up to the last digits of a float."""
    scores = [pytest.approx(score, rel=1e-5) for _, score in expected]
    return [text for text, _ in found] == [text for text, _ in expected] and [s for _, s in found] == scores


def both(path: Path, texts: list[str | None], **options: Any) -> tuple[LanceDataset, Any]:
    rows = pa.table({"t": pa.array(texts, pa.string())})
    ours = write_dataset(rows, path / "ours", "overwrite").create_scalar_index("t", "INVERTED", **options)
    theirs = lance.write_dataset(rows, str(path / "theirs"), mode="overwrite")
    theirs.create_scalar_index("t", "INVERTED", **options)
    return ours, theirs


def check(path: Path, ours: LanceDataset, theirs: Any, queries: list[str]) -> None:
    from spark_lance import dataset

    for query in queries:
        expected = answers(theirs, query)
        assert close(answers(ours, query), expected)
        assert close(answers(lance.dataset(str(path / "ours")), query), expected)
        assert close(answers(dataset(path / "theirs"), query), expected)


@settings(max_examples=4)
@given(texts=st.lists(LETTERS.filter(len), min_size=1, max_size=12), options=st.data())
def test_searches_of_runs_answer_as_pylance_does(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], options: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("runs")
    shortest = options.draw(st.integers(1, 3))
    chosen = {
        "min_ngram_length": shortest,
        "max_ngram_length": options.draw(st.integers(shortest, 4)),
        "prefix_only": options.draw(st.booleans()),
    }
    ours, theirs = both(path, [*texts, "abab ab"], base_tokenizer="ngram", **chosen)
    check(path, ours, theirs, ["a", "ab", "bab", "b a", *texts[:2]])


def test_an_index_of_runs_is_extended_with_its_options(tmp_path: Path) -> None:
    ds, _ = both(tmp_path, ["lance database"], base_tokenizer="ngram", min_ngram_length=2, prefix_only=True)
    ds = ds.insert({"t": ["later", "a lamp"]})
    ds.optimize.optimize_indices()
    result = ds.checkout_latest()
    assert result.index_statistics("t_idx")["num_unindexed_rows"] == 0
    assert [text for text, _ in answers(result, "la")] == ["lance database", "later"]


@pytest.mark.parametrize(
    "options", [{"min_ngram_length": 0}, {"min_ngram_length": 4}, {"max_ngram_length": 2}], ids=str
)
def test_runs_that_cannot_be(tmp_path: Path, options: dict[str, Any]) -> None:
    ds = write_dataset({"t": ["text"]}, tmp_path / "t")
    with pytest.raises(OptionError, match="letters"):
        ds.create_scalar_index("t", "INVERTED", base_tokenizer="ngram", **options)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of four words, and one of a user's own."""
    pytest.importorskip("jieba")
    home = tmp_path / "models"
    for name in ("default", "own"):
        (home / "jieba" / name).mkdir(parents=True)
    words = ["\u6211\u4eec 98740 r", "\u5149\u660e 1219 n", "\u7684 318825 uj", "\u524d\u9014 1263 n"]
    (home / "jieba" / "default" / "dict.txt").write_text("\n".join(words), "utf-8")
    (home / "jieba" / "own" / "user.txt").write_text("\u5149\u660e\u7684\u524d\u9014 30 n\n", "utf-8")
    config = '{"main": "../default/dict.txt", "users": ["user.txt"]}'
    (home / "jieba" / "own" / "config.json").write_text(config, "utf-8")
    monkeypatch.setenv(MODEL_HOME, str(home))
    return home


@pytest.mark.parametrize("model", ["jieba/default", "jieba/own"])
@pytest.mark.usefixtures("models")
def test_chinese_words_are_those_of_pylance(tmp_path: Path, model: str) -> None:
    texts = ["\u6211\u4eec\u90fd\u6709\u5149\u660e\u7684\u524d\u9014", "\u5149\u660e\u7684\u524d\u9014", None]
    ours, theirs = both(tmp_path, texts, base_tokenizer=model, stem=False, remove_stop_words=False)
    queries = ["\u6211\u4eec", "\u524d\u9014", "\u5149\u660e", "\u5149\u660e\u7684\u524d\u9014"]
    check(tmp_path, ours, theirs, queries)
    assert len(answers(ours, "\u524d\u9014")) == 2


@pytest.mark.usefixtures("models")
def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    ds = write_dataset({"t": ["text"]}, tmp_path / "t")
    with pytest.raises(OptionError, match="no model jieba/other"):
        ds.create_scalar_index("t", "INVERTED", base_tokenizer="jieba/other")
    with pytest.raises(OptionError, match="lindera"):
        ds.create_scalar_index("t", "INVERTED", base_tokenizer="lindera/ipadic")


def test_the_dictionary_of_jieba_is_kept_where_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept is unmarshalled, and the folder for temporary files is everybody's."""
    pytest.importorskip("jieba")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    (shared / "jieba.cache").write_bytes(b"not what it seems")
    tokenizer._jieba.cache_clear()
    jieba = tokenizer._jieba("default", None)
    tokenizer._jieba.cache_clear()
    folder = Path(jieba.tmp_dir)
    assert folder == tmp_path / "cache" / "spark-lance" / "jieba"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    jieba.initialize()
    assert (shared / "jieba.cache").read_bytes() == b"not what it seems"
    assert [path.name for path in folder.iterdir()] == ["jieba.cache"]


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_cache_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    folder = tmp_path / "spark-lance" / "jieba"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder.chmod(0o700)
    assert user_cache("jieba") == folder
    folder.chmod(mode)
    assert user_cache("jieba") == process_folder() != folder
    assert stat.S_IMODE(process_folder().stat().st_mode) == 0o700
