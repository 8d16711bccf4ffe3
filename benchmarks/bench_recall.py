"""Recall and time of vector searches by the number of searched partitions, compared with pylance.

    python -m benchmarks.bench_recall [--set a] [--kind IVF_PQ+refine] [--probes 1 2 4 8 16 32]

For each number of searched partitions, the benchmark reports the recall of the ten nearest rows, and the mean
milliseconds per query in one Python thread. Data sets and index types are those of bench_index. Each side
searches its own index, and the sides alternate.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.bench_index import KINDS, SETS, K, Matrix, nearest, recall
from benchmarks.harness import Results, parser


def answers(dataset: Any, queries: Matrix, search: dict[str, Any]) -> tuple[float, list[list[int]]]:
    """Return milliseconds per query, and what was found for each."""
    result = []
    began = time.perf_counter()
    for query in queries:
        nearest_to = {"column": "v", "q": query, "k": K, **search}
        result.append(dataset.to_table(columns=["id", "_distance"], nearest=nearest_to)["id"].to_pylist())
    return 1000 * (time.perf_counter() - began) / len(queries), result


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__)
    options.add_argument("--set", choices=SETS, default="a")
    options.add_argument("--kind", choices=KINDS, default="IVF_PQ+refine")
    options.add_argument("--probes", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    options.add_argument("--repeat", type=int, default=3)
    chosen = options.parse_args()
    results = Results("bench_recall", chosen.keep)
    make, partitions = SETS[chosen.set]
    vectors, queries = make()
    build, search = KINDS[chosen.kind]
    kind = re.sub(r"\d?\+.*", "", chosen.kind)
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = pa.table({"id": np.arange(len(vectors)), "v": values})
    truth = nearest(vectors, queries)
    print(f"{chosen.kind}, {len(vectors):,} x {vectors.shape[1]}, {partitions} partitions")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for who in ("ours", "pylance"):
            lance.write_dataset(table, str(folder / who))
        spark_lance.dataset(folder / "ours").create_index("v", kind, num_partitions=partitions, **build)
        lance.dataset(str(folder / "pylance")).create_index(
            "v", kind, metric="l2", num_partitions=partitions, **build
        )
        sides = {
            "ours": spark_lance.dataset(folder / "ours"),
            "pylance": lance.dataset(str(folder / "pylance")),
        }
        for probes in chosen.probes:
            best = {who: float("inf") for who in sides}
            share: dict[str, float] = {}
            for _ in range(chosen.repeat):
                for who, dataset in sides.items():
                    took, row_ids = answers(dataset, queries, {"nprobes": probes, **search})
                    best[who], share[who] = min(best[who], took), recall(row_ids, truth)
            case = f"{chosen.kind}, {probes} of {partitions} partitions"
            results.add(case, "recall", "", share["ours"], {"pylance": share["pylance"]}, more_is_better=True)
            results.add(case, "time", "ms per query", best["ours"], {"pylance": best["pylance"]})
            print(
                f"{probes:>4} partitions: recall {share['ours']:.3f} in {best['ours']:.2f} ms, "
                f"pylance {share['pylance']:.3f} in {best['pylance']:.2f} ms",
                flush=True,
            )
    results.save()


if __name__ == "__main__":
    main()
