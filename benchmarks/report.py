"""Draw the stored benchmark results: `python -m benchmarks.report`, or make bench-report.

For each benchmark in the newest file of `benchmarks/results`, the report writes pictures to docs/pictures.
Their names begin with the name of the benchmark. The kind of chart depends on the metric:

    recall and time of the same cases   recall against time, a line for each side
    bytes of tables and their columns   a row for each table, and each column of a table; a dot for each side
    rates (only the unit "1/s")         a group of bars for each case, a bar for each side
    other metrics with a peer           a bar for each case; its length is the ratio, and its label both
    figures

Each picture has a line with machine, load, versions and date. A figure without a peer is listed as text.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.harness import RESULTS, Record, read_results

__all__ = ["bars", "draw_benchmark", "main", "rates", "recall_against_time", "sizes"]

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
_BETTER, _WORSE, _PLAIN = "#388e3c", "#c62828", "#757575"
_ROW, _WIDTH = 0.3, 9.0
_FEWEST_COLUMNS = 3
# Room for the figures beside a bar, as a factor of the axis, and what is marked on it.
_ROOM = 3.2
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000)
# Benchmarks that compare whole systems. Their charts need no other title.
_BY_PEER = ("beside_iceberg", "bench_peers")
_NAMES = {"iceberg": "Iceberg", "delta": "Delta", "parquet": "Parquet"}
# Colour and marker of each side, the same in all charts.
_OURS = "spark_lance"
_SIDES = {
    _OURS: ("#3f51b5", "o"),
    "spark_lance zstd": ("#9fa8da", "o"),
    "pylance": ("#ef6c00", "s"),
    "Parquet snappy": ("#757575", "D"),
    "Parquet zstd": ("#bdbdbd", "D"),
}
# Makes charts reproducible.
matplotlib.use("svg")
matplotlib.rcParams.update({"svg.hashsalt": "spark-lance", "svg.fonttype": "none", "font.size": 9})


def bars(name: str, records: Sequence[Record]) -> Any | None:
    """Return the chart of one benchmark: ratios as bars from 1, to the right if ours is better.

    None if nothing was compared.
    """
    compared = sorted((r for r in records if r.ratio), key=lambda r: -(r.ratio or 1))
    if not compared:
        return None
    figure, axes = plt.subplots(figsize=(_WIDTH, 1.4 + _ROW * len(compared)))
    ratios = [record.ratio or 1.0 for record in compared]
    colours = [_BETTER if ratio >= 1 else _WORSE for ratio in ratios]
    axes.barh(range(len(compared)), [ratio - 1 for ratio in ratios], left=1, color=colours, height=0.7)
    peers = {record.peer_name for record in compared}
    axes.set_yticks(range(len(compared)), [_label(record, len(peers) > 1) for record in compared])
    axes.set_xscale("log")
    axes.set_xlim(min(0.9, *ratios) / _ROOM, max(1.1, *ratios) * _ROOM)
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)
    axes.axvline(1, color=_PLAIN, linewidth=0.8)
    for row, record in enumerate(compared):
        text = f"{record.ratio:.2g}x: {_amount(record.ours, record)} to {_amount(record.peer or 0, record)}"
        right = (record.ratio or 1) >= 1
        axes.annotate(
            text,
            (record.ratio or 1, row),
            xytext=(4 if right else -4, 0),
            textcoords="offset points",
            va="center",
            ha="left" if right else "right",
        )
    other = peers.pop() if len(peers) == 1 else "the other side"
    axes.set_ylim(len(compared) - 0.4, -0.6)
    axes.set_xlabel(f"\u2190 {other} is better      spark_lance is better \u2192")
    versus = f"spark_lance compared with {other}"
    axes.set_title(versus if name in _BY_PEER else f"{_title(name)}: {versus}", loc="left")
    _margins(figure)
    _foot(figure, records)
    return figure


def recall_against_time(name: str, records: Sequence[Record]) -> Any | None:
    """Return a chart of recall against time for the cases that have both; None if there are none."""
    recalls = {(r.case, r.peer_name): r for r in records if r.metric == "recall"}
    times = {(r.case, r.peer_name): r for r in records if r.metric == "time"}
    both = sorted(recalls.keys() & times.keys())
    if len(both) < 2:
        return None
    sides: dict[str, list[tuple[float, float]]] = {}
    for key in both:
        sides.setdefault("spark_lance", []).append((times[key].ours, recalls[key].ours))
        if times[key].peer is not None and recalls[key].peer is not None:
            sides.setdefault(key[1], []).append((times[key].peer or 0, recalls[key].peer or 0))
    figure, axes = plt.subplots(figsize=(_WIDTH, 4.5))
    for side, points in sides.items():
        colour, mark = _SIDES.get(side, (_PLAIN, "^"))
        axes.plot(*zip(*sorted(points), strict=True), marker=mark, color=colour, label=side)
    axes.set_xlabel(f"time ({times[both[0]].unit})")
    axes.set_ylabel("recall")
    axes.set_xscale("log")
    axes.legend()
    axes.set_title(f"{_title(name)} against time", loc="left")
    _foot(figure, records)
    return figure


def sizes(name: str, records: Sequence[Record]) -> Iterator[tuple[str, Any]]:
    """Yield size charts by name: of whole tables, and of the columns of each table.

    Cases are "TABLE: COLUMN", "all" for the whole table; the newest version of files is drawn. A dot is as
    far to the right as the side takes bytes for each byte of Parquet with snappy.
    """
    newest = max((r.metric.split(", ")[1] for r in records if r.metric.startswith("bytes, ")), default=None)
    if newest is None:
        return
    sizes_by_column: dict[str, dict[str, float]] = {}
    for record in records:
        if record.metric.startswith(f"bytes, {newest}"):
            own = _OURS + record.metric.removeprefix(f"bytes, {newest}").replace(", ", " ")
            sizes_by_column.setdefault(record.case, {}).update(
                {own: record.ours, record.peer_name: record.peer or 0}
            )
    tables: dict[str, dict[str, dict[str, float]]] = {}
    for case, sides in sizes_by_column.items():
        table, _, column = case.partition(": ")
        if column == "all":
            tables.setdefault("", {})[table] = sides
        else:
            tables.setdefault(table, {})[column] = sides
    for table, rows in sorted(tables.items()):
        if table and len(rows) < _FEWEST_COLUMNS:
            continue  # the picture of whole tables says it already
        title = f"Bytes of each column of {table!r}" if table else "Bytes of whole tables"
        stem = "_".join(filter(None, (name, table)))
        yield stem, _dots(f"{title}, files of version {newest}", rows, "Parquet snappy", records)


def _dots(title: str, rows: dict[str, dict[str, float]], unit: str, records: Sequence[Record]) -> Any:
    """Return a chart of figures as multiples of one side's figure, one row per case."""
    cases = {case: sides for case, sides in sorted(rows.items()) if sides.get(unit)}
    figure, axes = plt.subplots(figsize=(_WIDTH, 1.6 + 0.36 * len(cases)))
    others = [side for side in _SIDES if side != unit]
    for place, side in enumerate(others):
        # Side by side in a row, as many are about the same.
        shift = 0.18 * (place - (len(others) - 1) / 2)
        points = [
            (sides[side] / sides[unit], row + shift)
            for row, sides in enumerate(cases.values())
            if sides.get(side)
        ]
        if points:
            colour, mark = _SIDES[side]
            axes.plot(*zip(*points, strict=True), mark, color=colour, label=side, markersize=5)
    axes.set_yticks(range(len(cases)), [f"{case}  ({_bytes(sides[_OURS])})" for case, sides in cases.items()])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    axes.xaxis.set_minor_locator(NullLocator())
    for row in range(0, len(cases), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f5f5f5", zorder=0)
    axes.axvline(1, color=_PLAIN, linewidth=0.8, label=unit)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{title}: less is better; in brackets {_OURS}'s", loc="left")
    axes.set_ylim(len(cases) - 0.4, -0.6)
    _margins(figure)
    figure.legend(loc="upper left", bbox_to_anchor=(0.0, 0.0), ncols=len(_SIDES), frameon=False)
    _foot(figure, records, below=0.35)
    return figure


def rates(_name: str, records: Sequence[Record]) -> Any | None:
    """Return a group of bars for each case, a bar for each side; None unless all is of the unit "1/s"."""
    with_peer = [record for record in records if record.peer]
    if not with_peer or {record.unit for record in with_peer} != {"1/s"}:
        return None
    cases = sorted(dict.fromkeys(record.case for record in with_peer), key=_release)
    peers = sorted({record.peer_name for record in with_peer})
    figures = {_OURS: {record.case: record.ours for record in with_peer}}
    for peer in peers:
        figures[peer] = {record.case: record.peer or 0 for record in with_peer if record.peer_name == peer}
    figure, axes = plt.subplots(figsize=(_WIDTH, 3.6))
    width = 0.8 / len(figures)
    for place, (side, values) in enumerate(figures.items()):
        spots = [number + (place - (len(figures) - 1) / 2) * width for number in range(len(cases))]
        heights = [values.get(case, 0) for case in cases]
        bars_drawn = axes.bar(
            spots, heights, width * 0.92, label=side, color=_SIDES.get(side, (_PLAIN, ""))[0]
        )
        axes.bar_label(bars_drawn, fmt="%.3g", padding=2)
    axes.set_xticks(range(len(cases)), cases)
    axes.set_ylabel(f"{with_peer[0].metric} a second")
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    axes.set_title(f"{with_peer[0].metric.capitalize()} a second: more is better", loc="left")
    _foot(figure, records)
    return figure


def draw_benchmark(name: str, records: Sequence[Record]) -> Iterator[tuple[str, Any]]:
    """Yield the charts of a benchmark by name. The chart type depends on what it measures."""
    if any(record.metric.startswith("bytes, ") for record in records):
        yield from sizes(name, records)
        return
    if name == "bench_peers":
        for peer in sorted({record.peer_name for record in records}):
            stem = "_".join(["bench_peers", *re.findall(r"[a-z]+", peer.lower())])
            if (figure := bars(name, [one for one in records if one.peer_name == peer])) is not None:
                yield stem, figure
        return
    for draw in (recall_against_time, rates, bars):
        if (figure := draw(name, records)) is not None:
            yield name, figure
            return


def _bytes(count: float) -> str:
    return f"{count / 1e6:.2g} MB" if count >= 1e5 else f"{count / 1e3:.2g} kB"


def _release(name: str) -> list[int]:
    """Return the numbers of a release, as a sort key."""
    return [int(number) for number in re.findall(r"\d+", name)]


def _title(name: str) -> str:
    words = name.removeprefix("bench_").split("_")
    # Other systems keep the spelling of their names.
    return " ".join([words[0].capitalize(), *(_NAMES.get(word, word) for word in words[1:])])


def _label(record: Record, with_peer: bool) -> str:
    metric = "" if record.metric == "time" else f", {record.metric}"
    return f"{record.case}{metric}" + (f" ({record.peer_name})" if with_peer else "")


def _amount(figure: float, record: Record) -> str:
    if record.unit == "B":
        return f"{figure / 1e6:.3g} MB"
    return f"{figure:.3g} {record.unit}".strip()


def _margins(figure: Any) -> None:
    """Leave half an inch above and below the plot, for any number of rows."""
    share = 0.5 / figure.get_figheight()
    figure.subplots_adjust(bottom=share, top=1 - share)


def _foot(figure: Any, records: Sequence[Record], below: float = 0.0) -> None:
    """Write the measured machine below a chart, `below` inches under its edge."""
    dates = sorted({record.date[:10] for record in records})
    versions = ", ".join(f"{name} {version}" for name, version in sorted(records[0].versions.items()))
    load = max(record.load for record in records)
    machines = "; ".join(sorted({record.machine for record in records}))
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    text = f"{machines}\nload {load:g} per core; {when}\n{versions}"
    figure.text(0.01, -below / figure.get_figheight(), text, fontsize=7, color=_PLAIN, va="top")


def main(argv: Sequence[str] | None = None) -> int:
    """Draw the charts of the newest release that has figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the figures")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder of the pictures")
    arguments = parser.parse_args(argv)
    files = sorted(arguments.results.glob("*.json"), key=lambda path: _release(path.stem))
    if not files:
        print(f"{arguments.results} has no figures: run a benchmark with --keep")
        return 1
    records = read_results(files[-1])
    for name in sorted({record.bench for record in records}):
        own_records = [record for record in records if record.bench == name]
        for stem, figure in draw_benchmark(name, own_records):
            path = arguments.pictures / f"{stem}.svg"
            figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
            plt.close(figure)
            print(f"drew {path.name}")
        for record in own_records:
            if not record.ratio:
                print(f"  {record.case}, {record.metric}: {_amount(record.ours, record)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
