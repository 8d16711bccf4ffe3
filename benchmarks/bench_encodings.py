"""Bytes, write time and read time of single columns, compared with pylance and Parquet.

    python -m benchmarks.bench_encodings [--rounds N] [--repeat K] [--only WORD] [--bytes]

Each column is written by spark_lance, by pylance and as Parquet (snappy, zstd). The bytes are those of the
page buffers. Each time is the processor time of a process with one core and one thread. The sides alternate.
A figure is the median over the processes, and the figure of a process is the median of its repetitions.

    write        each side writes the column
    read own     each side reads its own file
    read         both sides read pylance's file

"numba" is spark_lance with compiled kernels. A ratio above 1 means that spark_lance is faster or smaller.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.bench_size import column_bytes, parquet_bytes
from benchmarks.columns import COLUMNS
from benchmarks.harness import Results, parser, run_alone
from benchmarks.tables import real_flights
from benchmarks.texts import texts

_ROWS = 100_000
_SCRIPT = """
import shutil, statistics, sys, time
import pyarrow as pa, pyarrow.parquet as pq
{import_line}
path, repeat = sys.argv[1], int(sys.argv[2])
{prepare}
figures = []
for turn in range(repeat + 1):
    start = time.process_time()
    result = {action}
    figures.append(time.process_time() - start)
    del result
    if {writes}:
        shutil.rmtree(path + f".{{turn}}", ignore_errors=True)
print(statistics.median(figures[1:]))
"""
_WRITE = {
    "lance": "m.write_dataset(table, path + f'.{turn}')",
    "Parquet": "pq.write_table(table, path + '.parquet')",
}
_READ = {"lance": "m.dataset(path).to_table()", "Parquet": "pq.read_table(path)"}
# Side -> (import, SPARK_LANCE_NUMBA, key of the actions).
_SIDES = {
    "spark_lance": ("import spark_lance as m", "off", "lance"),
    "numba": ("import spark_lance as m", "on", "lance"),
    "pylance": ("import lance as m", "off", "lance"),
    "Parquet": ("", "off", "Parquet"),
}


@dataclass(frozen=True)
class Files:
    """The stored forms of a column: an Arrow file, two tables, and Parquet files."""

    folder: Path

    def path(self, name: str) -> Path:
        """Return the path of the form `name`."""
        return self.folder / name


def _texts(name: str) -> pa.Table:
    return texts(["prose"], _ROWS).select([name])


def _digits() -> pa.Table:
    digits = np.random.default_rng(12).integers(48, 58, (200_000, 20), np.uint8)
    return pa.table({"a": [row.tobytes().decode() for row in digits]})


# The columns whose bytes or times were behind pylance's or Parquet's.
CASES: dict[str, Callable[[], pa.Table]] = {
    "text, URLs": lambda: _texts("url"),
    "text, Chinese, Japanese and Korean": lambda: _texts("cjk"),
    "text, prose": COLUMNS["FSST text, prose"][0],
    "text, random digits": _digits,
    "integers of 40 bits": COLUMNS["bit-packed int64"][0],
    "timestamps": COLUMNS["timestamps"][0],
    "struct of an integer and text": COLUMNS["struct of int and text"][0],
    "flights: month": lambda: real_flights().select(["month"]),
    "flights: day": lambda: real_flights().select(["day"]),
}


def seconds(side: str, path: Path, source: Path | None, repeat: int) -> float:
    """Return the median processor seconds of one process.

    Args:
        side: a key of `_SIDES`.
        path: the file or table to read, or the path of tables to write.
        source: the Arrow file to write; None to read.
        repeat: number of measurements.
    """
    import_line, mode, actions = _SIDES[side]
    prepare = "" if source is None else f"table = pa.ipc.open_file(pa.memory_map({str(source)!r})).read_all()"
    action = (_READ if source is None else _WRITE)[actions]
    script = _SCRIPT.format(
        import_line=import_line, prepare=prepare, action=action, writes=source is not None
    )
    return float(run_alone(["-c", script, str(path), str(repeat)], one_core=True, SPARK_LANCE_NUMBA=mode))


def medians(measures: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Run the measures alternating and return the median of each."""
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            figures[name].append(measure())
    return {name: statistics.median(values) for name, values in figures.items()}


def store(table: pa.Table, files: Files) -> dict[str, int]:
    """Write all forms of a column and return their bytes."""
    with pa.ipc.new_file(str(files.path("arrow")), table.schema) as file:
        file.write_table(table)
    spark_lance.write_dataset(table, str(files.path("spark_lance")))
    lance.write_dataset(table, str(files.path("pylance")), data_storage_version="2.2")
    result = {
        side: sum(column_bytes([str(path) for path in files.path(side).glob("data/*.lance")])[0].values())
        for side in ("spark_lance", "pylance")
    }
    for codec in ("zstd", "snappy"):
        result[f"Parquet {codec}"] = sum(parquet_bytes(table, codec, files.path("Parquet")))
    return result


def measure(files: Files, rounds: int, repeat: int) -> dict[str, dict[str, float]]:
    """Return by action and side the median seconds."""
    own = {side: files.path(side) for side in ("spark_lance", "pylance", "Parquet")}
    written = dict.fromkeys(own, files.path("new"))
    readers = ["spark_lance", *(["numba"] if importlib.util.find_spec("numba") else []), "pylance"]
    paths = {"write": written, "read own": own, "read": dict.fromkeys(readers, own["pylance"])}
    result = {}
    for action, by_side in paths.items():
        source = files.path("arrow") if action == "write" else None
        measures: dict[str, Callable[[], float]] = {
            side: partial(seconds, side, path, source, repeat) for side, path in by_side.items()
        }
        result[action] = medians(measures, rounds)
    return result


def report(case: str, sizes: dict[str, int], times: dict[str, dict[str, float]], results: Results) -> None:
    """Print and record the figures of a column."""
    peers = {name: float(size) for name, size in sizes.items() if name != "spark_lance"}
    results.add(case, "size", "B", sizes["spark_lance"], peers)
    cells = [f"{size / sizes['spark_lance']:6.2f}" for size in peers.values()]
    for action, by_side in times.items():
        others: dict[str, float] = {
            side: 1e3 * value for side, value in by_side.items() if side in ("pylance", "Parquet")
        }
        for side in ("spark_lance", "numba"):
            if side in by_side:
                metric = f"processor time, {action}" + (", numba" if side == "numba" else "")
                results.add(case, metric, "ms", 1e3 * by_side[side], others)
                cells.append(f"{1e3 * by_side[side]:7.1f} ms")
                cells += [f"{value / 1e3 / by_side[side]:5.2f}" for value in others.values()]
    print(f"{case:36} {sizes['spark_lance']:10} B {' '.join(cells)}", flush=True)


def main() -> None:
    """Measure all columns and print a line for each."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3, help="processes of each side")
    options.add_argument("--repeat", type=int, default=5, help="measurements in each process")
    options.add_argument("--bytes", action="store_true", help="measure no times")
    options.add_argument("--only", default="", help="measure the names that contain this")
    arguments = options.parse_args()
    results = Results("bench_encodings", arguments.keep)
    print(
        f"{'':36} {'bytes':>12} pylance zstd snappy; write, pylance, Parquet; read own, pylance, Parquet; "
        "read pylance's file, pylance; the same with numba"
    )
    for case, make in CASES.items():
        if arguments.only in case:
            with tempfile.TemporaryDirectory() as folder:
                files = Files(Path(folder))
                sizes = store(make(), files)
                times = {} if arguments.bytes else measure(files, arguments.rounds, arguments.repeat)
                report(case, sizes, times, results)
    results.save()


if __name__ == "__main__":
    main()
