"""Time of an epoch of shuffled training batches from a table, compared with Parquet.

    python -m benchmarks.bench_training [--rows 200000] [--dim 128] [--runs 3] [--keep]

Both sides read blocks of 2,048 rows (row groups in Parquet) in random order, shuffle 16 blocks in a buffer,
and return batches of 256 rows. The batches are tensors if PyTorch is installed, else numpy arrays. The sides
alternate in this process.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spark_lance
from benchmarks.harness import Results, parser
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.training.batches import Batches

BATCH, PIECE, BUFFER = 256, 2048, 16

Handed = dict[str, object]
Hand = Callable[[pa.Table], Handed]


def as_arrays(table: pa.Table) -> Handed:
    """Return columns as arrays of numpy that share memory."""
    result: Handed = {}
    for name in table.column_names:
        column = table[name].chunk(0)
        if pa.types.is_fixed_size_list(column.type):
            result[name] = column.flatten().to_numpy().reshape(len(column), -1)
        else:
            result[name] = column.to_numpy()
    return result


def from_table(ds: LanceDataset, hand: Hand) -> Iterator[Handed]:
    """Yield the batches of an epoch of a table."""
    batches = Batches(ds, BATCH, shuffle=True, piece_rows=PIECE, buffer_pieces=BUFFER)
    for table, _ in batches.epoch():
        yield hand(table)


def from_parquet(path: str, hand: Hand) -> Iterator[Handed]:
    """Yield the batches of an epoch of a Parquet file, shuffled in the same way."""
    file = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    chance = np.random.default_rng(0)
    groups = chance.permutation(file.num_row_groups).tolist()
    remainder = None
    for start in range(0, len(groups), BUFFER):
        table = file.read_row_groups(groups[start : start + BUFFER]).combine_chunks()
        table = table.take(pa.array(chance.permutation(table.num_rows)))
        table = table if remainder is None else pa.concat_tables([remainder, table]).combine_chunks()
        whole = table.num_rows - table.num_rows % BATCH
        for first in range(0, whole, BATCH):
            yield hand(table.slice(first, BATCH).combine_chunks())
        remainder = table.slice(whole) if whole < table.num_rows else None
    if remainder is not None:
        yield hand(remainder.combine_chunks())


def measured(batches: Iterator[Handed], rows: int) -> tuple[float, float]:
    """Return CPU and wall seconds of an epoch."""
    cpu, wall = time.process_time(), time.perf_counter()
    row_count = sum(len(batch["label"]) for batch in batches)  # type: ignore[arg-type, misc]
    assert row_count == rows
    return time.process_time() - cpu, time.perf_counter() - wall


def main() -> None:
    """Measure both."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=200_000)
    options.add_argument("--dim", type=int, default=128)
    options.add_argument("--runs", type=int, default=3)
    arguments = options.parse_args()
    hand: Hand = as_arrays
    if find_spec("torch") is not None:
        from spark_lance.training.torch import as_tensors

        hand = as_tensors
    results = Results("bench_training", arguments.keep)
    chance = np.random.default_rng(1)
    vectors = pa.array(chance.random(arguments.rows * arguments.dim, np.float32))
    rows = pa.table(
        {
            "vector": pa.FixedSizeListArray.from_arrays(vectors, arguments.dim),
            "label": chance.integers(0, 10, arguments.rows),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        ds = spark_lance.write_dataset(rows, f"{folder}/t.lance", max_rows_per_file=100_000)
        parquet = f"{folder}/t.parquet"
        pq.write_table(rows, parquet, row_group_size=PIECE, compression="none", use_dictionary=False)
        seconds: dict[str, list[tuple[float, float]]] = {"table": [], "Parquet": []}
        for _ in range(arguments.runs):
            seconds["table"].append(measured(from_table(ds, hand), arguments.rows))
            seconds["Parquet"].append(measured(from_parquet(parquet, hand), arguments.rows))
        print(f"an epoch of {arguments.rows:,} rows of {arguments.dim} floats, by {hand.__name__}")
        for name, times in seconds.items():
            cpu, wall = min(times)
            print(f"{name:10} {cpu:7.3f} s CPU {wall:7.3f} s")
        ours, theirs = (min(seconds[name])[0] for name in ("table", "Parquet"))
        results.add("shuffled epoch", "CPU time, least", "s", ours, {"Parquet": theirs})
    results.save()


if __name__ == "__main__":
    main()
