"""Time of text searches, and of vector searches with filters, compared with pylance.

    python -m benchmarks.bench_search [--documents 300000] [--vectors 200000] [--kinds IVF_PQ ...]
        [--shares 0.001 0.01 0.1 0.5 0.99] [--repeat 5] [--calls 10] [--only text] [--keep]

Text searches use documents of 25 words from a vocabulary of 50,000 frequent and rare words. Vector searches
use vectors of 128 floats in 256 partitions and search 16 of them, with and without a BTREE on the filter
column. Each query returns ten rows. Each side searches its own index, with one thread per core. The sides
alternate. The first columns of the output are the milliseconds per query. The last columns are the processor
time of all threads, which depends less on other processes.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spark_lance
import spark_lance.query
from benchmarks.harness import Results, in_turns, parser

_WORDS, _LENGTH, _WIDTH, _K = 50_000, 25, 128, 10
_KINDS = ["IVF_PQ", "IVF_FLAT", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ"]

Action = Callable[[int], object]


def documents(count: int) -> tuple[pa.Table, list[str]]:
    """Return texts with their ids, and all words, the frequent ones first."""
    draw = np.random.default_rng(3)
    letters = draw.choice(list("etaoinshrdlucmfwypvbgk"), (2 * _WORDS, 10))
    sizes = draw.integers(4, 11, 2 * _WORDS)
    every = ["".join(row[:size]) for row, size in zip(letters, sizes, strict=True)]
    words = list(dict.fromkeys(every))[:_WORDS]
    shares = 1 / (np.arange(len(words)) + 10.0)
    chosen = draw.choice(len(words), count * _LENGTH, p=shares / shares.sum())
    tokens = pa.array(words).take(pa.array(chosen)).to_pylist()
    texts = [" ".join(tokens[first : first + _LENGTH]) for first in range(0, len(tokens), _LENGTH)]
    return pa.table({"id": np.arange(count), "t": texts}), words


def vectors(count: int) -> pa.Table:
    """Return clustered vectors, with a column whose values below 1000 s are a share s of the rows."""
    draw = np.random.default_rng(4)
    centers = draw.normal(size=(200, _WIDTH)) * 2
    rows = (centers[draw.integers(0, 200, count)] + draw.normal(size=(count, _WIDTH))).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), _WIDTH)
    return pa.table({"id": np.arange(count), "part": draw.integers(0, 1000, count), "v": column})


def milliseconds(action: Action, calls: int, clock: Callable[[], float]) -> float:
    """Return the time of one of some calls by a clock."""
    start = clock()
    for number in range(calls):
        action(number)
    return 1e3 * (clock() - start) / calls


def compare(case: str, ours: Action, theirs: Action, repeat: int, calls: int, results: Results) -> None:
    """Print and note the time and the processor time of a query of both sides."""
    ours(0), theirs(0)
    sides = [
        functools.partial(milliseconds, side, calls, clock)
        for side in (ours, theirs)
        for clock in (time.perf_counter, time.process_time)
    ]
    figures = in_turns(repeat, *sides)
    print(
        f"{case:34} {figures[0]:8.2f} {figures[2]:8.2f} {figures[2] / figures[0]:6.2f}   "
        f"{figures[1]:8.2f} {figures[3]:8.2f} {figures[3] / figures[1]:6.2f}",
        flush=True,
    )
    results.add(case, "time", "ms", figures[0], {"pylance": figures[2]})
    results.add(case, "processor time", "ms", figures[1], {"pylance": figures[3]})


def built(case: str, sides: Sequence[Callable[[], object]], results: Results) -> None:
    """Build an index on both sides; print and note how long it takes."""
    figures = []
    for action in sides:
        start, processor = time.perf_counter(), time.process_time()
        action()
        figures.append((time.perf_counter() - start, time.process_time() - processor))
    (time_ours, busy_ours), (time_theirs, busy_theirs) = figures
    print(
        f"{case + ', s':34} {time_ours:8.2f} {time_theirs:8.2f} {time_theirs / time_ours:6.2f}   "
        f"{busy_ours:8.2f} {busy_theirs:8.2f} {busy_theirs / busy_ours:6.2f}",
        flush=True,
    )
    results.add(case, "time", "s", time_ours, {"pylance": time_theirs})
    results.add(case, "processor time", "s", busy_ours, {"pylance": busy_theirs})


def _queries(module: Any, words: Sequence[str]) -> dict[str, Callable[[int], Any]]:
    """Return by name what makes the query of a number: other words for each number."""
    near, far = words[20:120], words[1000:1100]

    def match(operator: str, *groups: Sequence[str]) -> Callable[[int], Any]:
        kind = module.FullTextOperator[operator]
        return lambda n: module.MatchQuery(" ".join(g[n % 100] for g in groups), "t", operator=kind)

    return {
        "one word": match("OR", near),
        "one rare word": match("OR", far),
        "three words, OR": match("OR", near, words[300:400], far),
        "two words, AND": match("AND", near, words[120:220]),
        "phrase": lambda n: module.PhraseQuery(f"{near[n % 100]} {words[30 + n % 100]}", "t"),
        "fuzzy, one edit": lambda n: module.MatchQuery(far[n % 100][:-1] + "x", "t", fuzziness=1),
    }


def measure_text(folder: Path, count: int, repeat: int, calls: int, results: Results) -> None:
    """Compare searches of text."""
    import lance
    import lance.query

    table, words = documents(count)
    paths = [str(folder / f"{side}_text.lance") for side in ("ours", "theirs")]
    opened: list[Any] = [spark_lance.write_dataset(table, paths[0]), lance.write_dataset(table, paths[1])]
    settings = {"with_position": True, "stem": False, "remove_stop_words": False}
    builds = [functools.partial(side.create_scalar_index, "t", "INVERTED", **settings) for side in opened]
    built("build of an index of text", builds, results)
    opened = [spark_lance.dataset(paths[0]), lance.dataset(paths[1])]
    makers = [_queries(module, words) for module in (spark_lance.query, lance.query)]

    def action(side: int, name: str) -> Action:
        table, make = opened[side], makers[side][name]
        return lambda n: table.to_table(["id", "_score"], full_text_query=make(n), limit=_K)

    for name in makers[0]:
        compare(name, action(0, name), action(1, name), repeat, calls, results)


def measure_vectors(
    folder: Path, count: int, kinds: Sequence[str], shares: Sequence[float], repeat: int, calls: int,
    results: Results,
) -> None:  # fmt: skip
    """Compare searches by vector with filters."""
    import lance

    table = vectors(count)
    queries = table["v"].combine_chunks().values.to_numpy().reshape(-1, _WIDTH)[:: max(1, count // 50)] + 0.1
    for kind in kinds:
        paths = [str(folder / f"{side}_{kind}.lance") for side in ("ours", "theirs")]
        opened: list[Any] = [spark_lance.write_dataset(table, paths[0]), lance.write_dataset(table, paths[1])]
        settings = {"num_partitions": 256, **({"num_sub_vectors": 16} if kind == "IVF_PQ" else {})}
        builds = [functools.partial(side.create_index, "v", kind, **settings) for side in opened]
        built(f"build of {kind}", builds, results)
        for scalar in (False, True):
            opened = [spark_lance.dataset(paths[0]), lance.dataset(paths[1])]
            if scalar:
                for side in opened:
                    side.create_scalar_index("part", "BTREE")

            def action(side: int, filter: str | None, opened: Sequence[Any] = opened) -> Action:
                def ask(number: int) -> object:
                    query = {"column": "v", "q": queries[number % len(queries)], "k": _K, "nprobes": 16}
                    return opened[side].to_table(
                        ["id", "_distance"], nearest=query, filter=filter, prefilter=True
                    )

                return ask

            end = ", BTREE" if scalar else ""
            for share in (None, *shares) if not scalar else shares:
                filter = None if share is None else f"part < {round(1000 * share)}"
                case = f"{kind}, " + ("all rows" if share is None else f"{100 * share:g} %") + end
                compare(case, action(0, filter), action(1, filter), repeat, calls, results)


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--documents", type=int, default=300_000)
    options.add_argument("--vectors", type=int, default=200_000)
    options.add_argument(
        "--kinds", nargs="+", default=["IVF_PQ", "IVF_FLAT", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ"]
    )
    options.add_argument("--shares", nargs="+", type=float, default=[0.001, 0.01, 0.1, 0.5, 0.99])
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--calls", type=int, default=10)
    options.add_argument("--only", choices=["text", "vectors"])
    arguments = options.parse_args()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("LANCE_CPU_THREADS", str(cores))
    pa.set_cpu_count(cores)
    results = Results("bench_search", arguments.keep)
    print(f"load {os.getloadavg()[0]:.1f}, {cores} cores; ours, pylance and their ratio")
    print(f"{'':34} {'ms':>8} {'pylance':>8} {'':6}   {'busy ms':>8} {'pylance':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder, turns = Path(name), (arguments.repeat, arguments.calls, results)
        if arguments.only != "vectors":
            measure_text(folder, arguments.documents, *turns)
        if arguments.only != "text":
            measure_vectors(folder, arguments.vectors, arguments.kinds, arguments.shares, *turns)
    results.save()


if __name__ == "__main__":
    main()
