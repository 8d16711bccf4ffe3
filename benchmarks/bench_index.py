"""Recall, build and search of indexes compared with pylance, and look-ups compared with Parquet.

    python -m benchmarks.bench_index [--sets a b digits text] [--kinds IVF_PQ ...] [--repeat K]
                                     [--lookup-rows N]

The data sets are clustered random vectors (a: 20,000 x 64, b: 100,000 x 128), the digits of scikit-learn
(1,597 x 64), and sentence vectors. A sentence vector is the sum of random vectors of 128 values, one for each
word of a sentence from the docstrings of installed packages. For each index type and data set:

    recall       recall of the ten nearest rows, as searcher/builder of the index: ours/ours, pylance/ours,
                 ours/pylance, pylance/pylance
    build        pylance's seconds divided by ours
    single       our milliseconds for one query, and pylance's divided by ours
    batch        our queries per second with all queries in one call, divided by pylance's one at a time

"+" marks a goal that is met and "-" one that is not: a ratio of 1.0 for builds and single queries.

Both sides build with all threads of the machine. The benchmark then reads rows by `id = n` with Spark, from a
table with a BTREE and from Parquet.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser, start_spark

Matrix = npt.NDArray[Any]

K = 10
_GOAL = 1.0
# Type -> (options of both builders, options of both searches).
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "IVF_FLAT": ({}, {}),
    "IVF_PQ": ({"num_sub_vectors": 16}, {}),
    "IVF_PQ+refine": ({"num_sub_vectors": 16}, {"refine_factor": 10}),
    "IVF_SQ": ({}, {}),
    "IVF_RQ": ({"num_bits": 5}, {}),
    "IVF_RQ1+refine": ({"num_bits": 1}, {"refine_factor": 10}),
    "IVF_HNSW_FLAT": ({}, {"ef": 200}),
    "IVF_HNSW_SQ": ({}, {"ef": 200}),
    "IVF_HNSW_PQ": ({"num_sub_vectors": 16}, {"ef": 200}),
}


def clustered(rows: int, dim: int, clusters: int, queries: int) -> tuple[Matrix, Matrix]:
    """Return (vectors, queries) around random centres."""
    random = np.random.default_rng(42)
    centers = random.standard_normal((clusters, dim), dtype=np.float32)

    def draw(count: int) -> Matrix:
        vectors: Matrix = centers[random.integers(0, clusters, count)] + random.standard_normal(
            (count, dim), dtype=np.float32
        )
        return vectors

    return draw(rows), draw(queries)


def digits() -> tuple[Matrix, Matrix]:
    """Return the handwritten digits of scikit-learn."""
    from sklearn.datasets import load_digits

    data = load_digits().data.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(data))
    return data[order[200:]], data[order[:200]]


def sentences() -> tuple[Matrix, Matrix]:
    """Return vectors of the sentences in the docstrings of installed packages."""
    distinct: dict[str, None] = {}
    for name in ("numpy", "pyarrow", "pyspark.sql", "sklearn", "pandas"):
        if importlib.util.find_spec(name.split(".")[0]) is None:
            continue
        __import__(name)
        for module in [m for key, m in list(sys.modules.items()) if key.startswith(name) and m is not None]:
            for _, part in inspect.getmembers(
                module, lambda one: inspect.isfunction(one) or inspect.isclass(one)
            ):
                for sentence in re.split(r"(?<=[.:])\s+|\n\n", inspect.getdoc(part) or ""):
                    if 4 <= len(sentence.split()) <= 40:
                        distinct[" ".join(sentence.split())] = None
    random = np.random.default_rng(0)
    words: dict[str, Matrix] = {}
    vectors = []
    for sentence in distinct:
        parts = re.findall(r"\w+", sentence.lower())
        total = np.zeros(128, np.float32)
        for word in parts:
            if word not in words:
                words[word] = random.standard_normal(128).astype(np.float32)
            total += words[word] / np.float32((len(word) < 4 and 4) or 1)
        vectors.append(total / max(float(np.linalg.norm(total)), 1e-6))
    data = np.array(vectors, np.float32)
    order = np.random.default_rng(0).permutation(len(data))
    return data[order[200:]], data[order[:200]]


SETS: dict[str, tuple[Callable[[], tuple[Matrix, Matrix]], int]] = {
    "a": (lambda: clustered(20_000, 64, 100, 200), 64),
    "b": (lambda: clustered(100_000, 128, 500, 200), 256),
    "digits": (digits, 8),
    "text": (sentences, 64),
}


def nearest(vectors: Matrix, queries: Matrix) -> list[set[int]]:
    """Return the true neighbours."""
    lengths = (vectors.astype(np.float64) ** 2).sum(axis=1)
    return [
        set(np.argpartition(lengths - 2 * (vectors @ query.astype(np.float64)), K)[:K].tolist())
        for query in queries
    ]


def recall(answers: list[list[int]], truth: list[set[int]]) -> float:
    """Return the share of the true neighbours that were found."""
    return sum(len(set(one) & other) for one, other in zip(answers, truth, strict=True)) / (K * len(truth))


def timed(work: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Return the best seconds of some runs, and the last result."""
    best, result = float("inf"), None
    for _ in range(repeat):
        began = time.perf_counter()
        result = work()
        best = min(best, time.perf_counter() - began)
    return best, result


def _judged(ratio: float) -> str:
    return f"{ratio:5.2f}{'+' if ratio >= _GOAL else '-'}"


@dataclass(frozen=True)
class Measured:
    """What was found out about one type of index on one set.

    Attributes:
        recalls: by (who searches, whose index).
        build: seconds, by who builds.
        single: seconds of one query, by who searches an index of its own.
        rate: our queries per second, all in one call.
    """

    recalls: dict[tuple[str, str], float]
    build: dict[str, float]
    single: dict[str, float]
    rate: float

    def line(self, kind: str) -> str:
        """Return what is printed."""
        recalls = " ".join(
            f"{self.recalls[who, whose]:.3f}" for whose in ("ours", "pylance") for who in ("ours", "pylance")
        )
        build, single = self.build, self.single
        return (
            f"{kind:15} recall {recalls}  "
            f"build {_judged(build['pylance'] / build['ours'])} ({build['ours']:.2f} s)  "
            f"single {1000 * single['ours']:.2f} ms {_judged(single['pylance'] / single['ours'])}  "
            f"batch {self.rate:,.0f}/s {self.rate * single['pylance']:6.1f}"
        )

    def note(self, results: Results, case: str) -> None:
        """Note the figures."""
        recall_of = {"pylance": self.recalls["pylance", "pylance"]}
        results.add(case, "recall@10", "", self.recalls["ours", "ours"], recall_of, more_is_better=True)
        results.add(case, "time, build", "s", self.build["ours"], {"pylance": self.build["pylance"]})
        theirs = {"pylance": 1000 * self.single["pylance"]}
        results.add(case, "time, one query", "ms", 1000 * self.single["ours"], theirs)
        rate = {"pylance": 1 / self.single["pylance"]}
        results.add(case, "queries, in one call", "1/s", self.rate, rate, more_is_better=True)


def measure(
    kind: str, partitions: int, vectors: Matrix, queries: Matrix, repeat: int, folder: Path
) -> Measured:
    """Build an index with both and search both with both."""
    build, search = KINDS[kind]
    index = re.sub(r"\d?\+.*", "", kind)
    count = max(1, partitions // 16) if "HNSW" in kind else partitions
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = pa.table({"id": np.arange(len(vectors)), "v": values})
    truth = nearest(vectors, queries)
    seconds: dict[str, float] = {}
    for who in ("ours", "pylance"):
        lance.write_dataset(table, str(folder / who), mode="overwrite")

    def build_ours() -> None:
        spark_lance.dataset(folder / "ours").create_index("v", index, num_partitions=count, **build)

    def build_theirs() -> None:
        lance.dataset(str(folder / "pylance")).create_index(
            "v", index, metric="l2", num_partitions=count, replace=True, **build
        )

    for _ in range(repeat):
        for who, work in (("ours", build_ours), ("pylance", build_theirs)):
            took, _ = timed(work, 1)
            seconds[who] = min(took, seconds.get(who, took))
    probes = {"nprobes": min(16, count), **search}
    answers: dict[tuple[str, str], list[list[int]]] = {}
    single: dict[str, float] = {}
    for whose in ("ours", "pylance"):
        ours, theirs = spark_lance.dataset(folder / whose), lance.dataset(str(folder / whose))

        def one(dataset: Any, query: Matrix) -> list[int]:
            request = {"column": "v", "q": query, "k": K, **probes}
            return list(dataset.to_table(columns=["id", "_distance"], nearest=request)["id"].to_pylist())

        for searcher, dataset in (("ours", ours), ("pylance", theirs)):
            [one(dataset, query) for query in queries[:20]]
            began = time.perf_counter()
            answers[searcher, whose] = [one(dataset, query) for query in queries]
            if searcher == whose:
                single[whose] = (time.perf_counter() - began) / len(queries)
    many = np.concatenate([queries] * (10_000 // len(queries)))
    ours = spark_lance.dataset(folder / "ours")
    request = {"column": "v", "q": many, "k": K, **probes}
    batch, _ = timed(lambda: ours.to_table(["id"], nearest=request), 1)
    recalls = {pair: recall(one, truth) for pair, one in answers.items()}
    return Measured(recalls, seconds, single, len(many) / batch)


def lookups(results: Results, rows: int, repeat: int, folder: Path) -> str:
    """Look single rows up by Spark, in a table with a BTREE and in Parquet; note it and return a line."""
    spark = start_spark()
    number = f"(id * 7919) % {rows} AS id"
    frame = spark.range(rows).selectExpr(number, "uuid() AS name", "rand() AS x")
    frame.write.parquet(str(folder / "parquet"))
    spark.read.parquet(str(folder / "parquet")).write.format("lance").mode("append").save(
        str(folder / "lance")
    )
    spark_lance.dataset(folder / "lance").create_scalar_index("id", "BTREE")
    keys = iter(np.random.default_rng(0).integers(0, rows, 1000).tolist())
    ours = spark.read.format("lance").load(str(folder / "lance"))
    theirs = spark.read.parquet(str(folder / "parquet"))
    plain = spark_lance.dataset(folder / "lance")
    seconds = {}
    for name, work in (
        ("spark_lance", lambda: ours.where(f"id = {next(keys)}").collect()),
        ("Parquet", lambda: theirs.where(f"id = {next(keys)}").collect()),
        ("spark_lance without Spark", lambda: plain.to_table(filter=f"id = {next(keys)}")),
    ):
        work()
        seconds[name], _ = timed(work, max(3, repeat))
    spark.stop()
    for name in ("spark_lance", "spark_lance without Spark"):
        case = f"one row of {rows:,} by id" + name.removeprefix("spark_lance")
        results.add(case, "time", "ms", 1000 * seconds[name], {"Spark Parquet": 1000 * seconds["Parquet"]})
    text = ", ".join(f"{name} {1000 * value:.1f} ms" for name, value in seconds.items())
    by_spark, alone = (
        seconds["Parquet"] / seconds["spark_lance"],
        seconds["Parquet"] / seconds["spark_lance without Spark"],
    )
    return (
        f"one row of {rows:,} by id: {text}; Parquet through ours {by_spark:.1f}, without Spark {alone:.0f}"
    )


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__)
    options.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--lookup-rows", type=int, default=10_000_000)
    chosen = options.parse_args()
    results = Results("bench_index", chosen.keep)
    print("recall@10 of ours/ours pylance/ours ours/pylance pylance/pylance (search/index)")
    for name in chosen.sets:
        make, partitions = SETS[name]
        vectors, queries = make()
        print(f"set {name}: {len(vectors):,} x {vectors.shape[1]}, {partitions} partitions", flush=True)
        for kind in chosen.kinds:
            with tempfile.TemporaryDirectory() as folder:
                measured = measure(kind, partitions, vectors, queries, chosen.repeat, Path(folder))
            print(" ", measured.line(kind), flush=True)
            measured.note(results, f"set {name}: {kind}")
    if chosen.lookup_rows:
        with tempfile.TemporaryDirectory() as folder:
            print(lookups(results, chosen.lookup_rows, chosen.repeat, Path(folder)))
    results.save()


if __name__ == "__main__":
    main()
