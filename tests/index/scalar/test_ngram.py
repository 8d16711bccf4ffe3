"""Indices of three letters, both ways."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

from spark_lance import dataset, write_dataset
from tests.index.scalar.test_scans import all_rows, found_rows

TEXTS = [
    "abc\u4e2ddef ghij", "na\u00efve", "\ufb01sh stra\u00dfe", "ab", "x_y-zzz1", "abc", "q\u0301rst",
    "\u00bdabc", None, "", "ABC D\u00e9'f", "\u0130stanbul", "a\U0001f600bcd", "abcabcabc", "100% sure",
    "STRASSE", "caf\u00e9 cafe",
]  # fmt: skip
CONDITIONS = [
    "contains(t, 'abc')", "contains(t, 'bcd')", "t like '%tra%'", "t like 'ab%c'", "contains(t, 'nothere')",
    "contains(t, 'caf\u00e9')", "starts_with(t, 'ABC')", "ends_with(t, 'anbul')", "t = 'na\u00efve'",
    "contains(t, '\ufb01sh')", "contains(t, 'ab')", "t is null", "t like '100\\%%'",
    "not contains(t, 'abc')", "contains(t, 'q\u0301rst')",
]  # fmt: skip


@pytest.mark.parametrize("builder", ["ours", "pylance"])
def test_rows_with_all_threes_are_looked_at(builder: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(pa.table({"k": range(len(TEXTS) * 40), "t": TEXTS * 40}), path, max_rows_per_file=300)
    if builder == "ours":
        dataset(path).create_scalar_index("t", "NGRAM")
    else:
        lance.dataset(str(path)).create_scalar_index("t", "NGRAM")
    for condition in CONDITIONS:
        assert found_rows(path, condition)[0] == all_rows(path, condition), condition
    assert found_rows(path, "contains(t, 'anbul')")[1] == 40
    assert found_rows(path, "contains(t, 'nothere')")[1] == 0


def test_pylance_uses_ours(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_dataset(pa.table({"k": range(len(TEXTS) * 40), "t": TEXTS * 40}), path)
    plain = lance.dataset(str(path))
    table = dataset(path).create_scalar_index("t", "NGRAM")
    theirs = lance.dataset(str(path))
    assert theirs.version == table.version
    for text in ("abc", "caf\u00e9", "cafe", "tra", "\ufb01sh", "stra\u00dfe", "zzz1", "q\u0301rst"):
        filter = f"contains(t, '{text}')"
        assert theirs.to_table(["k"], filter=filter).equals(plain.to_table(["k"], filter=filter)), text
