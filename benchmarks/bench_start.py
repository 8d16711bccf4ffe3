"""Time of the import, of opening a table, and of reading its first rows, each in its own process.

    python -m benchmarks.bench_start [--runs 5] [--keep]

Prints the limits, and the lowest processor seconds of several runs, which depend least on other programs.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from functools import partial

import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, in_turns, parser

# What runs, and how many seconds it may take.
STEPS = {
    "python and pyarrow alone": ("import numpy, pyarrow, pyarrow.compute", None),
    "import spark_lance": ("import spark_lance", 0.3),
    "dataset(uri).head()": ("import spark_lance; spark_lance.dataset({path!r}).head(3)", 0.6),
}


def cpu_seconds(program: str) -> float:
    """Return the CPU seconds of a program of Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure each step."""
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=5)
    arguments = options.parse_args()
    results = Results("bench_start", arguments.keep)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/t.lance"
        spark_lance.write_dataset(pa.table({"n": range(1000)}), path)
        for name, (program, limit) in STEPS.items():
            measured = partial(cpu_seconds, program.format(path=path))
            measured()  # what it imports is compiled then
            (least,) = in_turns(arguments.runs, measured)
            bound = "" if limit is None else f"   limit {limit} s"
            print(f"{name:28} {least:6.3f} s{bound}")
            results.add(name, "CPU time, least", "s", least, None if limit is None else {"limit": limit})
    results.save()


if __name__ == "__main__":
    main()
