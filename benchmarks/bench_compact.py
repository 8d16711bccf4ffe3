"""Time and memory of compacting many small files, compared with pylance.

    python -m benchmarks.bench_compact [--files N] [--rows N] [--folder PATH] [--stable-row-ids]

Each side compacts its own copy of a table of N files in a new process. The figures are wall time, processor
time and the peak memory of the process, including its imports.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.harness import Results, parser, run_alone


def _table(rows: int) -> pa.Table:
    rng = np.random.default_rng(0)
    tags = [[f"t{i % 5}", f"u{i % 3}"] if i % 4 else None for i in range(rows)]
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(rows * 16, np.float32)), 16)
    return pa.table(
        {
            "id": np.arange(rows),
            "name": pa.array([f"customer {i % 9973} of {i % 77}" for i in range(rows)]),
            "price": rng.random(rows),
            "quantity": rng.integers(0, 100, rows).astype(np.int32),
            "flag": rng.random(rows) < 0.3,
            "tags": pa.array(tags),
            "vector": vectors,
        }
    )


def _peak_mb() -> int:
    # `getrusage` would tell of the parent process if that was larger.
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")
    )
    return int(line.split()[1]) // 1024


def _compact(side: str, path: str) -> dict[str, Any]:
    """Compact a table in this process and return what that took."""
    table: Any
    if side == "pylance":
        import lance

        table = lance.dataset(path)
    else:
        from spark_lance.datasets.dataset import dataset

        table = dataset(path)
    before = _peak_mb()
    wall, processor = time.perf_counter(), time.process_time()
    done = table.optimize.compact_files()
    return {
        "side": side,
        "seconds": round(time.perf_counter() - wall, 2),
        "processor": round(time.process_time() - processor, 2),
        "before_mb": before,
        "peak_mb": _peak_mb(),
        "files": f"{done.files_removed} -> {done.files_added}",
    }


def _main() -> None:
    options = parser(__doc__)
    options.add_argument("--files", type=int, default=2000)
    options.add_argument("--rows", type=int, default=500, help="rows of a file")
    options.add_argument("--folder", type=Path)
    options.add_argument("--stable-row-ids", action="store_true")
    options.add_argument("--run", nargs=2, metavar=("SIDE", "PATH"), help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.run:
        print(json.dumps(_compact(*arguments.run)))
        return
    import lance

    results = Results("bench_compact", arguments.keep)
    rows: dict[str, dict[str, Any]] = {}
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        source = folder / "source"
        lance.write_dataset(
            _table(arguments.files * arguments.rows),
            source,
            max_rows_per_file=arguments.rows,
            enable_stable_row_ids=arguments.stable_row_ids,
        )
        print(f"{'':10}{'seconds':>10}{'processor':>11}{'peak MB':>9}{'before':>8}  files")
        for side in ("pylance", "ours"):
            copy = folder / side
            shutil.copytree(source, copy)
            answer = run_alone(["-m", "benchmarks.bench_compact", "--run", side, str(copy)])
            row = rows[side] = json.loads(answer.splitlines()[-1])
            print(
                f"{side:10}{row['seconds']:>10}{row['processor']:>11}{row['peak_mb']:>9}"
                f"{row['before_mb']:>8}  {row['files']}"
            )
            shutil.rmtree(copy)
    finally:
        shutil.rmtree(folder)
    case = f"{arguments.files:,} files of {arguments.rows:,} rows"
    for key, metric, unit in (
        ("seconds", "time", "s"),
        ("processor", "processor time", "s"),
        ("peak_mb", "peak memory", "MB"),
    ):
        results.add(case, metric, unit, rows["ours"][key], {"pylance": rows["pylance"][key]})
    results.save()


if __name__ == "__main__":
    _main()
