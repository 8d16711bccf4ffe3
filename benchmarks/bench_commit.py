"""Commits per second on a local disk with 1, 4 and 16 concurrent writers, compared with pylance.

    python -m benchmarks.bench_commit [--commits N] [--repeat K] [--writers 1 4 16]

Every writer is a process that appends fragments to the same table, one commit per fragment. Each commit is
based on the version of the writer's previous commit. No data files are written, so the time is that of the
commits, including conflicts and waiting. Both sides alternate, and the best run of each side counts. A ratio
above 1 means that spark_lance commits faster.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser

_COMMON = """
import sys, time, uuid
path, count, start = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
names = [uuid.uuid4().hex + ".lance" for _ in range(count)]
"""
_WRITERS = {
    "ours": _COMMON
    + """
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.operations.append import append_message
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import load_latest
table = TableRef(*open_store(path))
version = load_latest(table).version
print("ready", flush=True)
sys.stdin.readline()
for name in names:
    file = table_pb2.DataFile(path=name, fields=[0], column_indices=[0], file_major_version=2,
                              file_minor_version=2, file_size_bytes=500)
    operation = append_message([table_pb2.DataFragment(files=[file], physical_rows=1)])
    version = commit_operation(table, operation, read_version=version).version
""",
    "pylance": _COMMON
    + """
import lance
from lance.fragment import DataFile, FragmentMetadata
dataset = lance.dataset(path)
print("ready", flush=True)
sys.stdin.readline()
for name in names:
    file = DataFile(name, [0], [0], 2, 2, 500)
    operation = lance.LanceOperation.Append([FragmentMetadata(0, [file], 1)])
    dataset = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, max_retries=1000)
""",
}


def commits_per_second(who: str, writers: int, commits: int) -> float:
    """Let processes of one kind make `commits` commits together."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "table")
        spark_lance.write_dataset(pa.table({"a": pa.array([1], pa.int64())}), path)
        each = max(1, commits // writers)
        command = [sys.executable, "-c", _WRITERS[who], path, str(each), "0"]
        running = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(writers)
        ]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        began = time.perf_counter()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        failed = [process.communicate() for process in running if process.wait()]
        seconds = time.perf_counter() - began
        if failed or spark_lance.dataset(path).version != each * writers + 1:
            raise RuntimeError(f"{len(failed)} of {writers} writers failed")
        return each * writers / seconds


def main() -> None:
    """Measure and print a line per number of writers."""
    options = parser(__doc__)
    options.add_argument("--commits", type=int, default=320)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--writers", type=int, nargs="+", default=[1, 4, 16])
    arguments = options.parse_args()
    results = Results("bench_commit", arguments.keep)
    print(f"{'writers':>8} {'ours/s':>9} {'pylance/s':>10} {'ratio':>6}")
    for writers in arguments.writers:
        best = dict.fromkeys(_WRITERS, 0.0)
        for _ in range(arguments.repeat):
            for who in best:
                best[who] = max(best[who], commits_per_second(who, writers, arguments.commits))
        ratio = best["ours"] / best["pylance"]
        print(f"{writers:>8} {best['ours']:>9.1f} {best['pylance']:>10.1f} {ratio:>6.2f}", flush=True)
        case, theirs = f"{writers} writers", {"pylance": best["pylance"]}
        results.add(case, "commits", "1/s", best["ours"], theirs, more_is_better=True)
    results.save()


if __name__ == "__main__":
    main()
