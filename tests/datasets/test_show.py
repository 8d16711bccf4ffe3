"""Text and pictures of tables, their parts, and plans in shells and notebooks."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_lance import LanceDataset, dataset, write_dataset
from spark_lance.errors import OptionError
from spark_lance.io.display import cell_text, counts_text, size_text


@pytest.fixture
def table(tmp_path: Path) -> LanceDataset:
    for start in (0, 2000):
        ds = write_dataset(pa.table({"n": range(start, start + 2000)}), tmp_path / "<t>", mode="append")
    ds.tags.create("checked")
    ds.create_branch("audit")
    return dataset(tmp_path / "<t>").create_scalar_index("n", "BTREE")


def test_texts_for_people() -> None:
    assert [size_text(size) for size in (0, 1536, None)] == ["0 bytes", "1.5 KiB", "unknown"]
    assert [cell_text(value) for value in (12345, True, None, "x" * 70)] == [
        "12,345",
        "True",
        "",
        "x" * 57 + "...",
    ]
    assert counts_text([("rows", "1234"), ("files", "0"), ("mode", "append")]) == "rows 1,234, mode append"


def test_parts_of_a_table_are_lines_and_tables(table: LanceDataset) -> None:
    assert "version=3, rows=4,000" in repr(table)
    for part, line in (
        (table.tags, "checked  main  version 2  20"),
        (table.branches, "audit  from main  version 2  20"),
        (table.indices, "n_idx  BTree  n  4,000 rows  "),
        (table.history, "CREATE INDEX"),
    ):
        first = repr(part).splitlines()[1]
        assert line in first
        page = part._repr_html_()
        assert "&lt;t&gt;" in page
        assert "<t>" not in page
    (index,) = table.describe_indices()
    assert repr(index).startswith("IndexDescription('n_idx', BTree on n, 4,000 rows indexed, ")
    table.tags.delete("checked")
    assert repr(table.tags).splitlines()[1] == "  none"


def test_history_is_a_table(table: LanceDataset) -> None:
    assert table.history()["version"].to_pylist() == [3, 2, 1]
    assert table.history(1)["operation"].to_pylist() == ["CREATE INDEX"]


def test_a_plan_is_a_picture(table: LanceDataset) -> None:
    picture = table.explain("html", filter="n = 3000")
    page = picture._repr_html_()  # type: ignore[union-attr]
    assert "<b>1 of 2 fragments</b>" in page
    assert "fragment 0: skipped" in page
    assert "fragment 1: read" in page
    assert "n = 3000 by n_idx (BTREE)" in page
    assert table.explain(filter="n = 3000") == str(picture)
    assert "<b>2 of 2 fragments</b>" in table.explain("html")._repr_html_()  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="use text or html"):
        table.explain("picture")  # type: ignore[arg-type]


def test_results_and_builders_are_one_line(table: LanceDataset) -> None:
    merge = table.merge_insert("n").when_matched_update_all("source.n > 1").when_not_matched_insert_all()
    merge = merge.when_not_matched_by_source_delete("n < 0")
    assert repr(merge) == (
        f"MergeInsertBuilder(into {table.uri!r} on n, when matched and source.n > 1 then update, when not "
        "matched then insert, when not matched by source and n < 0 then delete; "
        "not executed: call execute(data))"
    )
    assert "on n, no clause; not executed" in repr(table.merge_insert("n"))
    assert repr(table.diff(1, 2)) == f"Changes(of {table.root!r}, after version 1 up to version 2)"
    (newest,) = table.get_transactions(1)
    assert repr(newest).startswith("Transaction(create_index, read_version=2, uuid=")
    fragment = table.get_fragments()[0]
    assert "rows=2,000" in repr(fragment)
    plan = table.explain("html", filter="n = 3000")
    assert repr(plan) == table.explain(filter="n = 3000")
    for part in (table.tags, table.history, fragment, table.scanner()):
        assert not [name for name in dir(part) if name[0] == "_" and name[1] != "_"]
    with pytest.raises(AttributeError, match="did you mean 'to_table'"):
        fragment.to_tabel  # type: ignore[attr-defined] # noqa: B018


def test_names_without_internals(table: LanceDataset) -> None:
    names = dir(table)
    assert {"to_table", "tags", "history", "explain"} <= set(names)
    assert not {"manifest", "snapshot", "searcher", "store", "_repr_html_"} & set(names)
