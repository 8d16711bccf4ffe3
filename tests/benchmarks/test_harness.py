"""Figures of benchmarks are kept per release, and a later run replaces its own only."""

from __future__ import annotations

import ast
import importlib.util
import json
import pkgutil
from pathlib import Path

import pytest

import benchmarks
import spark_lance
from benchmarks.harness import Record, Results, in_turns, read_results, run_alone

FIELDS = {
    "bench", "case", "metric", "unit", "ours", "peer", "peer_name", "ratio", "machine", "load",
    "versions", "date",
}  # fmt: skip
BENCHES = [name for _, name, _ in pkgutil.iter_modules(benchmarks.__path__) if name.startswith("bench")]


def _file(folder: Path) -> Path:
    return folder / f"{spark_lance.__version__}.json"


def test_records_have_the_documented_fields(tmp_path: Path) -> None:
    results = Results("bench_x", True, folder=tmp_path)
    results.add("a", "time", "s", 2.0, {"pylance": 3.0, "Spark Parquet": 1.0})
    results.add("a", "commits", "1/s", 2.0, {"pylance": 3.0}, more_is_better=True)
    results.add("a", "bytes", "B", 7)
    results.save()
    records = json.loads(_file(tmp_path).read_text())
    assert all(set(record) == FIELDS for record in records)
    ratios = {(record["metric"], record["peer_name"]): record["ratio"] for record in records}
    assert ratios == {
        ("bytes", ""): None,
        ("commits", "pylance"): 0.6667,
        ("time", "Spark Parquet"): 0.5,
        ("time", "pylance"): 1.5,
    }
    assert records[0]["versions"]["spark_lance"] == spark_lance.__version__


def test_a_run_replaces_its_own_figures_only(tmp_path: Path) -> None:
    for bench, case, ours in (("x", "a", 1.0), ("x", "b", 2.0), ("y", "a", 3.0), ("x", "a", 4.0)):
        results = Results(bench, True, folder=tmp_path)
        results.add(case, "time", "s", ours)
        results.save()
    values = {(record.bench, record.case): record.ours for record in read_results(_file(tmp_path))}
    assert values == {("x", "a"): 4.0, ("x", "b"): 2.0, ("y", "a"): 3.0}


def test_figures_of_other_machines_stay(tmp_path: Path) -> None:
    results = Results("x", True, folder=tmp_path)
    results.add("a", "time", "s", 1.0)
    results.save()
    other = _file(tmp_path).read_text().replace(results.records[0].machine, "another machine")
    _file(tmp_path).write_text(other)
    results.save()
    assert len(read_results(_file(tmp_path))) == 2


def test_nothing_is_written_unless_asked_for(tmp_path: Path) -> None:
    results = Results("x", False, folder=tmp_path / "results")
    results.add("a", "time", "s", 1.0)
    results.save()
    assert not list(tmp_path.iterdir())


def test_what_peers_lack_has_no_ratio(tmp_path: Path) -> None:
    results = Results("x", False, folder=tmp_path)
    results.add("a", "bytes", "B", 0, {"pylance": 5.0})
    assert [record.ratio for record in results.records] == [None]


def test_turns_keep_the_least_of_each() -> None:
    one, other = iter([3.0, 1.0, 2.0]), iter([5.0, 6.0, 4.0])
    assert in_turns(3, lambda: next(one), lambda: next(other)) == [1.0, 4.0]


def test_processes_get_what_they_are_given_and_failures_are_told() -> None:
    program = "import os, sys; print(os.environ['OMP_NUM_THREADS'], os.environ['MORE'], sys.argv[1])"
    assert run_alone(["-c", program, "x"], one_core=True, MORE="y").split() == ["1", "y", "x"]
    with pytest.raises(RuntimeError, match="no such thing"):
        run_alone(["-c", "raise ValueError('no such thing')"])


@pytest.mark.parametrize("name", BENCHES)
def test_every_benchmark_keeps_its_figures(name: str) -> None:
    spec = importlib.util.find_spec(f"benchmarks.{name}")
    assert spec is not None
    assert spec.origin is not None
    calls = [
        node for node in ast.walk(ast.parse(Path(spec.origin).read_text())) if isinstance(node, ast.Call)
    ]
    assert {"add", "save"} <= {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    (result,) = (call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Results")
    assert isinstance(result.args[0], ast.Constant)
    assert result.args[0].value == name


def test_kept_figures_can_be_read() -> None:
    for path in (Path(benchmarks.__file__).parent / "results").glob("*.json"):
        for record in read_results(path):
            assert isinstance(record, Record)
            # Those beside Iceberg come from a race of whole systems, which is no module here.
            assert record.bench in {*BENCHES, "beside_iceberg"}
