"""The tests nearest to a change come first, and a budget bounds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.import_graph import ROOT, needs_reference
from tests.near import choose, main, modules_of, nearest_tests


def test_the_mirrored_file_comes_first() -> None:
    assert nearest_tests({"spark_lance.io.store"})[0] == "tests.io.test_store"
    assert nearest_tests({"spark_lance.table.commits.commit"})[0] == "tests.table.commits.test_commit"


def test_a_folder_comes_before_what_is_built_on_it() -> None:
    tests = nearest_tests({"spark_lance.index.scalar.btree"})
    assert tests[0].startswith("tests.index.scalar.")
    assert tests.index("tests.index.scalar.test_btree") < tests.index("tests.cli.test_cli")


def test_java_counts_as_what_names_its_class() -> None:
    modules = modules_of([ROOT / "spark_lance/spark/jvm/org/lance/spark/scan/LanceScan.java"])
    assert modules
    assert nearest_tests(modules)[0].startswith("tests.spark.")


def test_a_budget_bounds_the_files() -> None:
    tests = ["tests.io.test_store", "tests.io.test_retry", "tests.io.test_cache"]
    durations = {
        "tests/io/test_store.py": 20.0,
        "tests/io/test_retry.py": 60.0,
        "tests/io/test_cache.py": 5.0,
    }
    assert choose(tests, durations, 40) == ["tests/io/test_store.py", "tests/io/test_cache.py"]
    assert choose(tests, durations, 0) == ["tests/io/test_store.py"]


def test_files_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", str(Path("spark_lance") / "io" / "retry.py")]) == 0
    assert "tests/io/test_retry.py" in capsys.readouterr().out


def test_helpers_say_which_tests_need_the_reference() -> None:
    assert needs_reference("tests.pylance_tables")
    assert needs_reference("tests.reference.test_whole_tables")
    assert not needs_reference("tests.test_layers")


def test_files_that_need_the_reference_are_marked(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("reference") is None
