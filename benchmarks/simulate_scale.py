"""Estimate the cost of an index on very many vectors from the cost of small ones.

    python -m benchmarks.simulate_scale [--rows N] [--dim D] [--partitions P] [--segments S] [--sample-rate R]
                                        [--queries Q] [--nprobes K] [--cores C]

The script builds indexes on 20,000 and 40,000 random vectors to find the bytes per row and per partition. It
measures how fast one core of this machine compares vectors with P centroids. From these figures it estimates
the files, the memory, the exchanged data and the bytes read per search of an index on N vectors. It does not
build that index.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spark_lance
from spark_lance.index.vector.base.ivf import Ivf

KINDS = {"IVF_PQ": {"num_sub_vectors": 8}, "IVF_PQ 16": {"num_sub_vectors": 16}, "IVF_RQ": {"num_bits": 5}}
# Bytes of a row that searches hold in memory, besides one for each code: its id, and what is added to its
# products and, with RQ, multiplied by them.
HELD = {"IVF_PQ": 12, "IVF_RQ": 16}
GB, MB = 1e9, 1e6


def bytes_of(kind: str, rows: int, dim: int, partitions: int) -> tuple[int, int]:
    """Return the bytes of the two files of an index: centroids, and codes."""
    vectors = np.random.default_rng(0).standard_normal((rows, dim)).astype("float32")
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), dim)
    with tempfile.TemporaryDirectory() as folder:
        table = spark_lance.write_dataset(pa.table({"v": values}), f"{folder}/t")
        options: dict[str, Any] = {**KINDS[kind], "sample_rate": 16, "max_iters": 2}
        table.create_index("v", kind.split()[0], num_partitions=partitions, **options)
        (index,) = Path(folder, "t", "_indices").rglob("index.idx")
        return index.stat().st_size, index.with_name("auxiliary.idx").stat().st_size


def assigned_per_second(dim: int, partitions: int) -> float:
    """Return how many vectors are compared with all centroids in a second, on one core."""
    random = np.random.default_rng(0)
    ivf = Ivf(random.standard_normal((partitions, dim)).astype("float32"), "l2")
    vectors = random.standard_normal((4096, dim)).astype("float32")
    ivf.assign(vectors[:256])
    start = time.perf_counter()
    ivf.assign(vectors)
    return len(vectors) / (time.perf_counter() - start)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--partitions", type=int, default=16_384)
    parser.add_argument("--segments", type=int, default=4)
    parser.add_argument("--sample-rate", type=int, default=256)
    parser.add_argument("--queries", type=int, default=10**6)
    parser.add_argument("--nprobes", type=int, default=20)
    parser.add_argument("--cores", type=int, default=100)
    args = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        sys.exit("measure one core: set OPENBLAS_NUM_THREADS=1")
    lines: list[tuple[str, str]] = []
    sample = min(args.rows, args.sample_rate * args.partitions)
    rate = assigned_per_second(args.dim, args.partitions)
    vector = 4 * args.dim
    lines.append(("vectors", f"{args.rows * vector / GB:,.0f} GB"))
    lines.append(("sample of training, one task", f"{sample:,} rows, {sample * vector / GB:.1f} GB"))
    lines.append(("a pass of k-means over it, one core", f"{sample / rate / 60:.1f} min"))
    lines.append(("vectors assigned per second and core", f"{rate:,.0f}"))
    lines.append((f"all assigned by {args.cores} cores", f"{args.rows / rate / args.cores / 60:,.0f} min"))
    task = -(-args.rows // (4 * args.cores))
    lines.append(("rows of a coding task, ids in memory", f"{task:,}, {task * 20 / MB:,.0f} MB"))
    for kind in KINDS:
        few, some, more = (
            bytes_of(kind, rows, args.dim, parts)
            for rows, parts in ((20_000, 64), (40_000, 64), (40_000, 128))
        )
        row = (some[1] - few[1]) / 20_000
        partition = (more[0] - some[0]) / 64
        codes, centroids = row * args.rows, partition * args.partitions
        a_partition = codes / args.partitions
        row_bytes = KINDS[kind].get("num_sub_vectors", args.dim) + HELD[kind.split()[0]]
        lines += [
            (f"{kind}: bytes of a row", f"{row:.1f}"),
            (f"{kind}: codes, all segments", f"{codes / GB:,.1f} GB"),
            (f"{kind}: centroids, each segment", f"{centroids / MB:.1f} MB"),
            (f"{kind}: temporary files of a coding task", f"{task * row / MB:,.0f} MB"),
            (f"{kind}: a query reads of each segment",
             f"{args.nprobes * a_partition / args.segments / MB:.1f} MB of codes"),
            (f"{kind}: a query reads of all segments",
             f"{(args.nprobes * a_partition + args.segments * centroids) / MB:,.0f} MB, centroids included"),
            (f"{kind}: a partition in memory",
             f"{args.rows / args.partitions / args.segments * row_bytes / MB:.1f} MB"),
        ]  # fmt: skip
    places = args.queries * args.nprobes * args.segments
    sent_bytes = places * (4 * args.dim + 24)
    lines.append(("searchBatch: rows and bytes to the partitions", f"{places:,}, {sent_bytes / GB:,.0f} GB"))
    answer_bytes = places * 10 * 20
    lines.append(("searchBatch: bytes of candidates, k = 10", f"{answer_bytes / GB:,.0f} GB"))
    for name, value in lines:
        sys.stdout.write(f"{name:48} {value}\n")


if __name__ == "__main__":
    main()
