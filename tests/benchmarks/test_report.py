"""Pictures of figures say which side is better, by how much, and what they were measured on."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from benchmarks.harness import Record

pytest.importorskip("matplotlib")

from benchmarks import report


def record(
    case: str, ours: float, peer: float | None, metric: str = "time", bench: str = "bench_x"
) -> Record:
    better = 1 if metric == "recall" else -1
    ratio = None if not peer or not ours else round((ours / peer) ** better, 4)
    unit = "" if metric == "recall" else "ms"
    name = "" if peer is None else "pylance"
    return Record(
        bench,
        case,
        metric,
        unit,
        ours,
        peer,
        name,
        ratio,
        "Some CPU, 2 cores",
        0.1,
        {"pyarrow": "26"},
        "2026-11-22T10",
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    records = [
        record("scan", 10, 20),
        record("take", 30, 15),
        record("alone", 5, None),
        *(record(f"probes {n}", n, 2 * n, bench="bench_y") for n in (1, 2, 4)),
        *(record(f"probes {n}", 0.2 * n, 0.2 * n, "recall", bench="bench_y") for n in (1, 2, 4)),
    ]
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "0.1.0.json").write_text(json.dumps([asdict(each) for each in records]))
    return folder


def test_every_benchmark_is_drawn(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--results", str(results), "--pictures", str(tmp_path)]
    assert report.main(words) == 0
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert set(drawn) == {"bench_x.svg", "bench_y.svg"}
    for text in (
        "2x: 10 ms to 20 ms",
        "0.5x: 30 ms to 15 ms",
        "scan",
        "pylance is better",
        "spark_lance is better",
        "Some CPU, 2 cores",
        "pyarrow 26",
    ):
        assert text in drawn["bench_x.svg"], text
    assert "2026-11-22" in drawn["bench_x.svg"]
    assert "Y against time" in drawn["bench_y.svg"]
    assert "alone, time: 5 ms" in capsys.readouterr().out
    assert report.main(words) == 0  # the same picture comes out of the same figures
    assert drawn == {path.name: path.read_text() for path in tmp_path.glob("*.svg")}


def size(case: str, ours: float, peers: dict[str, float], metric: str) -> list[Record]:
    blank = record(case, ours, None, metric, "bench_size")
    return [
        replace(blank, unit="B", peer=peer, peer_name=name, ratio=peer / ours) for name, peer in peers.items()
    ]


def test_sizes_are_dots_by_table_and_by_column() -> None:
    records: list[Record] = []
    for case, ours in (
        ("flights: all", 3e6),
        ("flights: day", 2e3),
        ("flights: hour", 5e5),
        ("flights: tail", 1e6),
        ("digits: all", 5e4),
        ("digits: x", 5e4),
    ):
        for version, factor in (("2.1", 7), ("2.2", 1)):
            sides = {"pylance": 2 * ours, "Parquet snappy": ours / 2}
            records += size(case, factor * ours, sides, f"bytes, {version}")
            records += size(case, ours / 4, {"Parquet zstd": ours / 5}, f"bytes, {version}, zstd")
    result = dict(report.draw_benchmark("bench_size", records))
    assert list(result) == ["bench_size", "bench_size_flights"]  # digits has one column
    (axes,) = result["bench_size"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["digits  (50 kB)", "flights  (3 MB)"]
    dots = {line.get_label(): list(line.get_xdata()) for line in axes.lines}
    assert dots["spark_lance"] == [2, 2]  # of the newest version of files, as a multiple of Parquet's bytes
    assert dots["pylance"] == [4, 4]
    assert dots["spark_lance zstd"] == [0.5, 0.5]
    assert dots["Parquet zstd"] == [0.4, 0.4]
    (columns,) = result["bench_size_flights"].axes
    labels = [label.get_text() for label in columns.get_yticklabels()]
    assert labels == ["day  (2 kB)", "hour  (0.5 MB)", "tail  (1 MB)"]


def test_rates_are_bars_by_case_and_side() -> None:
    records = [
        replace(record(f"{n} writers", 10 * n, n, "commits", "bench_commit"), unit="1/s") for n in (16, 1, 4)
    ]
    ((name, figure),) = report.draw_benchmark("bench_commit", records)
    (axes,) = figure.axes
    assert name == "bench_commit"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 writers", "4 writers", "16 writers"]
    heights = [[bar.get_height() for bar in group] for group in axes.containers]
    assert heights == [[10, 40, 160], [1, 4, 16]]
    # What is not all rates is drawn by ratios.
    mixed = [*records, record("scan", 1, 2, bench="bench_commit")]
    assert report.rates("bench_commit", mixed) is None


def test_without_figures_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(["--results", str(tmp_path)]) == 1
    assert "run a benchmark with --keep" in capsys.readouterr().out


def test_whatever_was_kept_is_drawn_or_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = [record("older", 1, 2)], [record("alone", 5, None), record("nothing", 0, 3, bench="bench_z")]
    new.append(record("nowhere near", 1, 1e9, bench="bench_z"))
    # The newest release counts, not the file that was written last.
    for release, records in (("0.10.0", new), ("0.9.0", old)):
        (tmp_path / f"{release}.json").write_text(json.dumps([asdict(each) for each in records]))
    assert report.main(["--results", str(tmp_path), "--pictures", str(tmp_path)]) == 0
    assert [path.name for path in tmp_path.glob("*.svg")] == ["bench_z.svg"]
    said = capsys.readouterr().out
    assert "alone, time: 5 ms" in said
    assert "nothing, time: 0 ms" in said
    assert "older" not in said


def test_peers_have_a_picture_each_whose_axis_names_both_sides() -> None:
    records = [
        replace(record("update", 1.0, 2.0, bench="bench_peers"), peer_name=f"Iceberg 1.12.0, {mode}")
        for mode in ("copy-on-write", "merge-on-read")
    ]
    pictures = dict(report.draw_benchmark("bench_peers", records))
    assert sorted(pictures) == [
        "bench_peers_iceberg_copy_on_write",
        "bench_peers_iceberg_merge_on_read",
    ]
    axes = pictures["bench_peers_iceberg_copy_on_write"].axes[0]
    assert "Iceberg 1.12.0, copy-on-write is better" in axes.get_xlabel()
    assert "spark_lance is better" in axes.get_xlabel()


def test_peers_with_other_answers_stop_the_benchmark() -> None:
    from benchmarks.bench_peers import MODES, SYSTEMS, Figures

    for peer in ("Iceberg", "Delta"):
        modes = [name for name in SYSTEMS if name.startswith(peer)]
        assert [name.rpartition(", ")[2] for name in modes] == list(MODES)
    figures = Figures()
    figures.add("spark_lance", {"figures": [["count", "time", 1.0]], "checks": {"count": 3}})
    with pytest.raises(SystemExit, match="count: spark_lance has 3, Delta has 4"):
        figures.add("Delta", {"figures": [["count", "time", 2.0]], "checks": {"count": 4}})
    assert list(figures.medians()) == [("count", "time", {"spark_lance": 1.0, "Delta": 2.0})]
