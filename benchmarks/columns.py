"""The tables of the file benchmark, one per column type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from benchmarks.tables import real_flights

__all__ = ["COLUMNS", "flat_vectors"]

_WORDS = np.array(
    [
        "the",
        "table",
        "holds",
        "rows",
        "of",
        "many",
        "columns",
        "and",
        "each",
        "column",
        "is",
        "kept",
        "in",
        "pages",
        "that",
        "a",
        "reader",
        "may",
        "fetch",
        "alone",
        "because",
        "its",
        "description",
        "says",
        "where",
        "they",
        "begin",
        "how",
        "long",
        "they",
        "are",
        "and",
        "which",
        "encoding",
        "was",
        "chosen",
        "for",
        "them",
        "when",
        "somebody",
        "wrote",
        "data",
        "with",
        "values",
        "near",
        "another",
        "or",
        "far",
        "apart",
        "so",
        "numbers",
        "become",
        "small",
    ]
)


def _one(values: pa.Array) -> pa.Table:
    return pa.table({"a": values})


def flat_vectors(rows: int, size: int) -> pa.Table:
    """Vectors of `size` random float32 each."""
    values = np.random.default_rng(size).normal(size=rows * size).astype(np.float32)
    return _one(pa.FixedSizeListArray.from_arrays(pa.array(values), size))


def _integers(rows: int, bits: int) -> pa.Table:
    return _one(pa.array(np.random.default_rng(bits).integers(0, 1 << bits, rows)))


def _doubles(rows: int) -> pa.Table:
    return _one(pa.array(np.random.default_rng(1).normal(size=rows)))


def _signed(rows: int) -> pa.Table:
    return _one(pa.array(np.random.default_rng(2).integers(-(1 << 62), 1 << 62, rows)))


def _timestamps(rows: int) -> pa.Table:
    steps = np.random.default_rng(3).integers(0, 60_000_000, rows)
    return _one(pa.array(1_357_016_400_000_000 + np.cumsum(steps), pa.timestamp("us", "UTC")))


def _nullable(rows: int) -> pa.Table:
    rng = np.random.default_rng(4)
    return _one(pa.array(rng.integers(0, 1 << 20, rows).astype(np.int32), mask=rng.random(rows) < 0.1))


def _few_texts(rows: int) -> pa.Table:
    names = np.array(["delivered", "returned to sender", "on its way", "lost", "waiting for payment"])
    return _one(pa.array(names[np.random.default_rng(5).integers(0, len(names), rows)]))


def _url_array(rows: int) -> pa.Array:
    rng = np.random.default_rng(6)
    hosts = np.array(["www.example.org", "shop.example.com", "docs.example.net"])[rng.integers(0, 3, rows)]
    numbers = rng.integers(0, 10**8, (rows, 2))
    return pa.array(
        [
            f"https://{host}/catalogue/{_WORDS[a % len(_WORDS)]}/item-{a}?session={b:x}"
            for host, (a, b) in zip(hosts, numbers.tolist(), strict=True)
        ]
    )


def _prose(rows: int) -> pa.Table:
    rng = np.random.default_rng(7)
    words = _WORDS[rng.integers(0, len(_WORDS), rows * 20)].tolist()
    sizes = rng.integers(5, 20, rows).tolist()
    return _one(pa.array([" ".join(words[20 * i : 20 * i + size]) for i, size in enumerate(sizes)]))


def _lists(rows: int) -> pa.Table:
    rng = np.random.default_rng(8)
    sizes = rng.integers(1, 11, rows)
    missing = rng.random(rows) < 0.1
    sizes[missing | (rng.random(rows) < 0.1)] = 0
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    items = pa.array(rng.integers(0, 1 << 16, int(offsets[-1])).astype(np.int32))
    return _one(pa.ListArray.from_arrays(pa.array(offsets), items, mask=pa.array(missing)))


def _full_lists(rows: int) -> pa.Table:
    rng = np.random.default_rng(9)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, 11, rows))]).astype(np.int32)
    items = pa.array(rng.integers(0, 1 << 16, int(offsets[-1])).astype(np.int32))
    return _one(pa.ListArray.from_arrays(pa.array(offsets), items))


def _structs(rows: int) -> pa.Table:
    numbers = pa.array(np.random.default_rng(10).integers(0, 1 << 40, rows))
    texts = pa.array([f"user-{i * 7919 % 1_000_003}" for i in range(rows)])
    return _one(pa.StructArray.from_arrays([numbers, texts], ["id", "name"]))


# Name -> (table, target for the lowest ratio to pylance).
COLUMNS: dict[str, tuple[Callable[[], pa.Table], float]] = {
    "float32 vectors, 128": (partial(flat_vectors, 100_000, 128), 3.0),
    "float32 vectors, 768": (partial(flat_vectors, 20_000, 768), 3.0),
    "flat int64": (partial(_signed, 4_000_000), 2.0),
    "flat float64": (partial(_doubles, 4_000_000), 2.0),
    "bit-packed int64": (partial(_integers, 4_000_000, 40), 1.2),
    "timestamps": (partial(_timestamps, 4_000_000), 1.2),
    "nullable int32": (partial(_nullable, 4_000_000), 1.3),
    "low-cardinality text": (partial(_few_texts, 1_000_000), 1.7),
    "FSST text, URLs": (lambda: _one(_url_array(500_000)), 0.8),
    "FSST text, prose": (partial(_prose, 300_000), 0.8),
    "lists, none empty": (partial(_full_lists, 500_000), 0.8),
    "lists, null and empty": (partial(_lists, 500_000), 0.8),
    "struct of int and text": (partial(_structs, 500_000), 0.8),
    "flights table": (real_flights, 1.0),
}
