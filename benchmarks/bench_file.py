"""Time of decoding, writing, opening and taking rows of a table on one thread, compared with pylance.

    python -m benchmarks.bench_file [--rounds N] [--repeat K] [--only WORD]

The tables to read are written by pylance with its default encodings (data storage version 2.2). Every
measurement runs in a new process on one core. The sides alternate, and the lowest processor time of each side
counts. Processor time depends less on other load of the machine. A ratio above 1 means that spark_lance is
faster. "numpy" is spark_lance without compiled kernels, "numba" with them. Loading them takes half a second,
which is not included. (A process that decodes little does not load them, see
spark_lance/file/kernels/accelerate.py.) "+" marks a goal that is met. A memory-mapped column counts as read
when it can be used, before its bytes are in memory.

Takes are also measured in bytes: the bytes requested from a store that cannot map files, compared with the
bytes that pylance reports as read from the disk.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fsspec
import lance
import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.columns import COLUMNS, flat_vectors
from benchmarks.harness import Results, parser, run_alone
from benchmarks.tables import real_flights
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import open_store

# Name of a side -> (what its processes import, SPARK_LANCE_NUMBA in them).
_SIDES = {
    "numpy": ("import spark_lance as m", "off"),
    "numba": ("import spark_lance as m", "on"),
    "pylance": ("import lance as m", "off"),
}
_READ = "m.dataset(path).to_table()"
_NARROW = "m.dataset(path).to_table(columns=['column 7', 'column 1900'])"
# A new set of rows each time, so that nothing that was decoded before helps.
_TAKE = "m.dataset(path).take(np.random.default_rng(turn).integers(0, 1_000_000, 1000).tolist())"
_WRITE = "m.write_dataset(table, path + f'.{turn}')"
_TAKEN = 1000
_SCRIPT = """
import shutil, sys, time
import numpy as np, pyarrow as pa
{import_line}
path, repeat = sys.argv[1], int(sys.argv[2])
{prepare}
best = 1e9
for turn in range(repeat):
    start = time.process_time()
    result = {action}
    best = min(best, time.process_time() - start)
    del result
    if {writes}:
        shutil.rmtree(path + f'.{{turn}}')
print(best)
"""


@dataclass(frozen=True)
class _Case:
    """Something to measure: an action on a table, and the ratio to pylance that is aimed at."""

    name: str
    action: str
    table: Callable[[], pa.Table]
    goal: float


def seconds(side: str, action: str, path: Path, repeat: int) -> float:
    """Return the least processor seconds of an action in a fresh process."""
    writes = action is _WRITE
    prepare = "table = pa.ipc.open_file(pa.memory_map(path)).read_all()" if writes else ""
    import_line, mode = _SIDES[side]
    script = _SCRIPT.format(import_line=import_line, prepare=prepare, action=action, writes=writes)
    return float(run_alone(["-c", script, str(path), str(repeat)], one_core=True, SPARK_LANCE_NUMBA=mode))


def compare(action: str, path: Path, rounds: int, repeat: int) -> dict[str, float]:
    """Return the least seconds of every side, measured in turns."""
    sides = [side for side in _SIDES if side != "numba" or importlib.util.find_spec("numba")]
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for side in sides:
            best[side] = min(best[side], seconds(side, action, path, repeat))
    return best


def report(results: Results, case: _Case, size: int, best: dict[str, float]) -> None:
    """Print one line of the table, and note it."""
    theirs = best["pylance"]
    for side in ("numpy", "numba"):
        if side in best:
            metric = "processor time" if side == "numpy" else "processor time, numba"
            results.add(case.name, metric, "ms", best[side] * 1e3, {"pylance": theirs * 1e3})
    times = " ".join(f"{best[side] * 1e3:9.2f}" if side in best else f"{'-':>9}" for side in _SIDES)
    ratios = " ".join(
        f"{theirs / best[side]:6.2f}{'+' if theirs / best[side] >= case.goal else ' '}"
        if side in best
        else f"{'-':>7}"
        for side in ("numpy", "numba")
    )
    print(
        f"{case.name:28} {size / 1e6:7.1f} {size / theirs / 1e6:8.0f} {times} {ratios} {case.goal:5.1f}",
        flush=True,
    )


def _bytes_taken(path: Path) -> tuple[int, int, int]:
    """Return our bytes and requests for a take from a store that cannot map files, and pylance's bytes."""
    rows = np.random.default_rng(0).integers(0, 1_000_000, _TAKEN).tolist()
    fs = fsspec.filesystem("memory")
    target = f"/benchmark/{path.parent.name}"
    fs.put(str(path), target, recursive=True)
    counted: list[int] = []
    real = MemoryStore.read_ranges

    def count(self: MemoryStore, name: str, ranges: list[tuple[int, int]]) -> list[pa.Buffer]:
        counted.extend(size for _, size in ranges)
        return real(self, name, ranges)

    store, _ = open_store("memory:///")
    assert not store.is_local
    MemoryStore.read_ranges = count  # type: ignore[method-assign, assignment]
    try:
        spark_lance.dataset(f"memory://{target}").take(rows)
    finally:
        MemoryStore.read_ranges = real  # type: ignore[method-assign]
        fs.rm(target, recursive=True)
    theirs = lance.dataset(str(path))
    theirs.io_stats_incremental()
    theirs.take(rows)
    return sum(counted), len(counted), theirs.io_stats_incremental().read_bytes


def _report_take(results: Results, name: str, path: Path, best: dict[str, float]) -> None:
    ours, ranges, theirs = _bytes_taken(path)
    results.add(name, "bytes per row", "B", ours / _TAKEN, {"pylance": theirs / _TAKEN})
    per_row = ", ".join(f"{side} {seconds / _TAKEN * 1e6:.1f}" for side, seconds in best.items())
    print(
        f"  {name}: us per row: {per_row}; bytes per row: {ours / _TAKEN:.0f} in {ranges} ranges, "
        f"pylance {theirs / _TAKEN:.0f}",
        flush=True,
    )


def _written_by_pylance(table: pa.Table, path: Path) -> None:
    lance.write_dataset(table, str(path), data_storage_version="2.2")


def _written_by_us(table: pa.Table, path: Path) -> None:
    spark_lance.write_dataset(table, str(path))


def _stored_as_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def _wide() -> pa.Table:
    return pa.table({f"column {i}": pa.array(np.arange(1000) * i) for i in range(2000)})


def _million_flights() -> pa.Table:
    table = real_flights()
    copies = pa.concat_tables([table] * (1_000_000 // len(table) + 1))
    return copies.slice(0, 1_000_000).combine_chunks()


def _cases() -> list[_Case]:
    """Return everything that is measured."""
    cases = [_Case(name, _READ, make, goal) for name, (make, goal) in COLUMNS.items()]
    return [
        *cases,
        _Case("take 1000 of vectors", _TAKE, lambda: flat_vectors(1_000_000, 32), 1.0),
        _Case("take 1000 of flights", _TAKE, _million_flights, 1.0),
        _Case("write flights", _WRITE, COLUMNS["flights table"][0], 1.0),
        _Case("write vectors", _WRITE, COLUMNS["float32 vectors, 128"][0], 1.5),
        _Case("write text", _WRITE, COLUMNS["FSST text, prose"][0], 1.0),
        # The goal of these is 30 ms, whatever pylance needs.
        _Case("2 of 2000 columns", _NARROW, _wide, 0.0),
        _Case("2 of 2000 columns, own file", _NARROW, _wide, 0.0),
    ]


def main() -> None:
    """Measure everything and print the table."""
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=3, help="processes of each side")
    options.add_argument("--repeat", type=int, default=5, help="measurements in each process")
    options.add_argument("--only", default="", help="measure the names that contain this")
    arguments = options.parse_args()
    results = Results("bench_file", arguments.keep)
    print(f"{'':28} {'':7} {'pylance':>8} {'numpy':>9} {'numba':>9} {'pylance':>9} {'ratio to pylance':>14}")
    print(
        f"{'':28} {'MB':>7} {'MB/s':>8} {'ms':>9} {'ms':>9} {'ms':>9} {'numpy':>6} {'numba':>7} {'goal':>6}"
    )
    for case in _cases():
        if arguments.only not in case.name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table"
            table = case.table()
            size = _TAKEN * table.nbytes // table.num_rows if case.action is _TAKE else table.nbytes
            if case.action is _NARROW:
                size = table.select(["column 7", "column 1900"]).nbytes
            store = _stored_as_arrow if case.action is _WRITE else _written_by_pylance
            store = _written_by_us if case.name.endswith("own file") else store
            store(table, path)
            del table
            best = compare(case.action, path, arguments.rounds, arguments.repeat)
            report(results, case, size, best)
            if case.action is _TAKE:
                _report_take(results, case.name, path, best)
    results.save()


if __name__ == "__main__":
    main()
