"""Cost of a commit with `durability="fsync"` on a local disk, compared with the default.

    python -m benchmarks.bench_durability [--commits N] [--repeat K] [--folder DIR]

Each step appends rows to its own table, which writes a data file, a transaction and a manifest. Both modes
alternate in one process, and the median of all appends counts. A ratio of 2 means that an append with fsync
takes twice as long. Choose a folder on the disk to measure; a folder in memory shows no difference.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser

_WAYS: dict[str, dict[str, str]] = {"none": {}, "fsync": {"durability": "fsync"}}
_CASES = {"one row": 1, "10 MB": 10 * 2**20 // 8}


def append_seconds(folder: Path, rows: int, commits: int) -> dict[str, list[float]]:
    """Return the seconds of each append, by durability; the two ways take turns.

    Args:
        folder: where the tables are made.
        rows: of each append, one column of 8-byte integers that do not compress.
        commits: appends of each way.
    """
    draw = np.random.default_rng(0)
    result: dict[str, list[float]] = {way: [] for way in _WAYS}
    for number in range(commits + 1):
        table = pa.table({"a": draw.integers(0, 2**63 - 1, rows)})
        for way, options in _WAYS.items():
            began = time.perf_counter()
            spark_lance.write_dataset(
                table, folder / way, "create" if number == 0 else "append", storage_options=options
            )
            if number:  # the first one creates the table
                result[way].append(time.perf_counter() - began)
    return result


def main() -> None:
    """Measure and print a line per size."""
    options = parser(__doc__)
    options.add_argument("--commits", type=int, default=50, help="appends of each way in a round")
    options.add_argument("--repeat", type=int, default=3, help="rounds")
    options.add_argument("--folder", type=Path, default=None, help="where the tables are made")
    arguments = options.parse_args()
    results = Results("bench_durability", arguments.keep)
    for case, rows in _CASES.items():
        seconds: dict[str, list[float]] = {way: [] for way in _WAYS}
        commits = arguments.commits if rows == 1 else max(1, arguments.commits // 5)
        for _ in range(arguments.repeat):
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                for way, times in append_seconds(Path(folder), rows, commits).items():
                    seconds[way] += times
        plain, forced = (1000 * median(seconds[way]) for way in ("none", "fsync"))
        line = f"{case:8} default {plain:8.2f} ms   fsync {forced:8.2f} ms   {forced / plain:6.2f} x"
        print(line, flush=True)
        results.add(case, "time", "ms", forced, {"default": plain})
    results.save()


if __name__ == "__main__":
    main()
